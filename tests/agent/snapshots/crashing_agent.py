"""An agent that ends itself with SIGKILL at the crash point named by CRASH_AT, the n-th time it gets there.

Run as a program with the agent's own arguments. Everything but the crash point is the real agent.
"""

import os
import signal

from agent import app
from agent.cli import main
from agent.config import Settings
from agent.snapshots.assembly import SnapshotParts

_POINT, _, _TIMES = os.environ.get("CRASH_AT", "").partition("#")
_left = int(_TIMES or 1)


def crash(name: str) -> None:
    """End the process without any chance to clean up, at the right point."""
    global _left  # noqa: PLW0603  # a countdown of this process
    if name == _POINT:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def parts_that_crash(settings: Settings) -> SnapshotParts:
    """Return the parts of a cache with the crash point in them."""
    return SnapshotParts(settings, crash_point=crash)


if __name__ == "__main__":
    # The one seam: everything else is the agent as it is shipped.
    vars(app)["SnapshotParts"] = parts_that_crash
    main()
