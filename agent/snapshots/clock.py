"""Whether the wall clock can be believed, so that nothing is removed for age alone while it cannot.

Why this exists: a host's clock is stepped by time synchronisation, by hand and by dead batteries. Ages and expiries
are counted on the wall clock because they must survive restarts; so it is watched against the boot-time clock, which
is never set, against the controller's time, and against what the ledger says of this boot and of its last write. The
rule itself is pure; `HostClock` only reads.
"""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from agent.snapshots.model import Moment

MAX_DRIFT_SECONDS = 300.0
MAX_STOPPED_SECONDS = 24 * 3600.0
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


class Clock(Protocol):
    """The two clocks of a host, in seconds."""

    def wall(self) -> float:
        """Return Unix time; may jump either way."""
        ...

    def boot(self) -> float:
        """Return time since boot, suspension included; never set and never going back."""
        ...

    def boot_id(self) -> str:
        """Return what tells this boot of the host from all others; empty when it cannot be told."""
        ...


class HostClock:
    """The clocks of this host."""

    def wall(self) -> float:
        """Return Unix time."""
        return time.time()

    def boot(self) -> float:
        """Return time since boot, suspension included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> str:
        """Return the kernel's id of this boot."""
        try:
            with open(BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""


@dataclass(frozen=True, slots=True)
class ClockWatch:
    """What the clocks showed when the wall clock was last believed, and whether it is in doubt since.

    Once in doubt it stays so until a controller or a person confirms the time: a clock that jumped forward and back
    has stamped records in between.
    """

    wall_at: float
    boot_at: float
    in_doubt: bool = False

    @property
    def booted_at(self) -> float:
        """When the host was booted, by the wall clock as it was last believed."""
        return self.wall_at - self.boot_at

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


def first_watch(
    wall: float, boot: float, last_write_at: float | None, *, was_in_doubt: bool, booted_at: float | None = None
) -> ClockWatch:
    """Return the watch of a process that starts now, from what its ledger says; None is a new ledger.

    A wall clock before the ledger's last write is doubted too: it was right then or is right now, not both.
    `booted_at` is when this same boot began, as recorded before; None when it is another boot or was not recorded. A
    step while the agent was stopped shows in it, however small against the time of the stop.
    """
    doubted = was_in_doubt or (booted_at is not None and abs(wall - boot - booted_at) > MAX_DRIFT_SECONDS)
    if last_write_at is not None:
        passed = wall - last_write_at
        doubted = doubted or passed > MAX_STOPPED_SECONDS or passed < -MAX_DRIFT_SECONDS
    return ClockWatch(wall, boot, doubted)
