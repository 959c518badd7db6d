"""A controller that ends itself with SIGKILL at the crash point of seat release named by CRASH_AT.

Run as a program with the controller's own arguments. Everything but the crash point is the real controller.
"""

import functools
import os
import signal

from controller.cli import main
from controller.seats import assembly

_POINT = os.environ.get("CRASH_AT", "")


def crash(name: str) -> None:
    """End the process without any chance to clean up, at the right point."""
    if name == _POINT:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # The one seam: everything else is the controller as it is shipped.
    vars(assembly)["SeatParts"] = functools.partial(assembly.SeatParts, crash_point=crash)
    main()
