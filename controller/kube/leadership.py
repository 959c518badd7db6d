"""The right to act as the leader: granted by the election, ended by the clock, asked for before each changing call.

Why this exists: whoever changes something must not need to know how the leader is elected, and the election must not
know who acts. Between the two stands one object that says yes or no at this very moment.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass


def boot_clock() -> float:
    """Return seconds since boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NotLeadingError(Exception):
    """This process does not lead, or can no longer be sure that it does; nothing may be changed."""


class EpochError(Exception):
    """An epoch that somebody claims to know cannot be followed; `str()` says which."""


@dataclass(frozen=True, slots=True)
class ElectionTimes:
    """Seconds. A leader that has not renewed for `renew_deadline` stops; others may follow after `duration`."""

    duration: float = 10.0
    renew_deadline: float = 7.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        """Refuse times under which two could lead at once."""
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError("election times must be 0 < retry < renew deadline < duration")


class Leadership:
    """The right to act, as long as it lasts. `subscribe` hears each beginning, change of epoch and end."""

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        """Without the right until the elector grants it."""
        self._clock = clock
        self._epoch: int | None = None
        self._valid_until = float("-inf")
        self._listeners: list[Callable[[int | None], None]] = []
        self._granted = asyncio.Event()
        self._revoked = asyncio.Event()
        self._revoked.set()

    @property
    def epoch(self) -> int | None:
        """The epoch of a right that holds now, else None."""
        return self._epoch if self._clock() < self._valid_until else None

    def require(self) -> int:
        """Return the epoch to send with a changing call. Raises NotLeadingError."""
        epoch = self.epoch
        if epoch is None:
            raise NotLeadingError("this controller does not lead")
        return epoch

    def seconds_left(self) -> float:
        """How long the right lasts without another renewal; 0 without it."""
        return 0.0 if self._epoch is None else max(0.0, self._valid_until - self._clock())

    async def wait_granted(self) -> None:
        """Return once the right is there."""
        await self._granted.wait()

    async def wait_revoked(self) -> None:
        """Return once the right is gone: taken away, or ended by the clock while the API kept a renewal waiting."""
        while (left := self.seconds_left()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._revoked.wait()
        self.revoke()

    def subscribe(self, listener: Callable[[int | None], None]) -> None:
        """Call `listener` with the epoch when the right begins or its epoch changes, and with None when it ends."""
        self._listeners.append(listener)

    def grant(self, epoch: int, valid_until: float) -> None:
        """The elector's: the right holds until that moment of the clock."""
        changed = epoch != self._epoch
        self._epoch, self._valid_until = epoch, valid_until
        if changed:
            self._tell(epoch)

    def revoke(self) -> None:
        """The elector's: the right is gone."""
        if self._epoch is not None:
            self._epoch, self._valid_until = None, float("-inf")
            self._tell(None)

    def _tell(self, epoch: int | None) -> None:
        current, other = (self._revoked, self._granted) if epoch is None else (self._granted, self._revoked)
        current.set()
        other.clear()
        for listener in self._listeners:
            listener(epoch)
