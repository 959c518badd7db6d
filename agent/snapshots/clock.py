"""Whether the wall clock can be believed, so that nothing is removed for age alone while it cannot.

Why this exists: a host's clock is stepped by time synchronisation, by hand and by dead batteries. Ages and expiries
are counted on the wall clock because they must survive restarts; so it is watched against the boot-time clock, which
is never set, against the controller's time, and against the ledger's last write. The rule itself is pure; `HostClock`
only reads.
"""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from agent.snapshots.model import Moment

MAX_DRIFT_SECONDS = 300.0
MAX_STOPPED_SECONDS = 24 * 3600.0


class Clock(Protocol):
    """The two clocks of a host, in seconds."""

    def wall(self) -> float:
        """Return Unix time; may jump either way."""
        ...

    def boot(self) -> float:
        """Return time since boot, suspension included; never set and never going back."""
        ...


class HostClock:
    """The clocks of this host."""

    def wall(self) -> float:
        """Return Unix time."""
        return time.time()

    def boot(self) -> float:
        """Return time since boot, suspension included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockWatch:
    """What the clocks showed when the wall clock was last believed, and whether it is in doubt since.

    Once in doubt it stays so until a controller or a person confirms the time: a clock that jumped forward and back
    has stamped records in between.
    """

    wall_at: float
    boot_at: float
    in_doubt: bool = False

    def look(self, wall: float, boot: float) -> "ClockWatch":
        """Return the watch after one more look at both clocks."""
        drift = (wall - self.wall_at) - (boot - self.boot_at)
        return replace(self, in_doubt=True) if not self.in_doubt and abs(drift) > MAX_DRIFT_SECONDS else self

    def compare(self, wall: float, boot: float, controller_time: float) -> "ClockWatch":
        """Return the watch after a controller told its time: confirmed when both agree, in doubt when they do not."""
        if abs(wall - controller_time) > MAX_DRIFT_SECONDS:
            return replace(self, in_doubt=True)
        return ClockWatch(wall_at=wall, boot_at=boot)

    def moment(self, wall: float) -> Moment:
        """Return the time for a decision."""
        return Moment(wall, self.in_doubt)


def first_watch(wall: float, boot: float, last_write_at: float | None, *, was_in_doubt: bool) -> ClockWatch:
    """Return the watch of a process that starts now, from what its ledger says; None is a new ledger.

    A wall clock before the ledger's last write is doubted too: it was right then or is right now, not both.
    """
    doubted = was_in_doubt
    if last_write_at is not None:
        passed = wall - last_write_at
        doubted = doubted or passed > MAX_STOPPED_SECONDS or passed < -MAX_DRIFT_SECONDS
    return ClockWatch(wall, boot, doubted)
