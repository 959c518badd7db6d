"""The brake on purges that follow deletions nobody saw.

Why this exists: a wrong picture of the cluster shows itself as many deletions at once. What is purged cannot be brought
back, what waits ten minutes can be purged then, and a person has time to look.

Purges are counted before they are sent, a few in advance: so one record of the count, written before the first of them,
covers them all, and a process that crashes and starts again goes on counting where it was.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

# Purges counted at once, and for how long what is left of them may be used. Entries are kept that much longer.
_AT_ONCE: Final = 10
_SPARE_SECONDS: Final = 10.0


class Brake:
    """At most `limit` purges in any `window_seconds`; times are monotonic seconds."""

    def __init__(self, limit: int = 100, window_seconds: float = 600.0) -> None:
        """Released, with nothing counted yet. `version` grows whenever more is counted than before."""
        self.version = 0
        self._limit = limit
        self._kept_seconds = window_seconds + _SPARE_SECONDS
        self._counted: deque[tuple[float, int]] = deque()
        self._spare = 0
        self._waiting: set[str] = set()
        self._released: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many purges wait."""
        return len(self._waiting)

    def take(self, name: str, now: float) -> bool:
        """Ask to go on with the purge called `name`; one that may not waits until it asks again or is forgotten."""
        self._expire(now)
        if name in self._released:
            self._released.discard(name)
        elif self._spare:
            self._spare -= 1
        elif (left := self._limit - self._total()) > 0:
            count = min(_AT_ONCE, left)
            self._counted.append((now, count))
            self._spare = count - 1
            self.version += 1
        else:
            self._waiting.add(name)
            return False
        self._waiting.discard(name)
        return True

    def seconds_until_free(self, now: float) -> float:
        """How long until the next purge may go on."""
        if not self._counted or self._spare or self._total() < self._limit:
            return 0.0
        return max(0.0, self._counted[0][0] + self._kept_seconds - now)

    def left(self, now: float) -> int:
        """Return how many more may go on now."""
        self._expire(now)
        return self._limit - self._total() + self._spare

    def counted(self, now: float) -> list[tuple[float, int]]:
        """Return how many were counted, with how many seconds ago."""
        self._expire(now)
        return [(now - at, count) for at, count in self._counted]

    def learn(self, counted: Iterable[tuple[float, int]], now: float) -> None:
        """Take over what a process before counted, in the form of `counted`, unless more is known already."""
        self._expire(now)
        theirs = deque(sorted((now - max(0.0, age), count) for age, count in counted if age < self._kept_seconds))
        if sum(count for _, count in theirs) > self._total():
            self._counted, self._spare = theirs, 0

    def learn_nothing_good(self, now: float) -> None:
        """What was counted before cannot be read: count everything, so that time or a person frees it."""
        self.learn([(0.0, self._limit)], now)

    def forget(self, name: str) -> None:
        """A purge is not wanted any more."""
        self._waiting.discard(name)
        self._released.discard(name)

    def release(self) -> int:
        """A person's word: everything that waits now may go on. Return how many that is."""
        count = len(self._waiting)
        self._released |= self._waiting
        self._waiting.clear()
        return count

    def clear(self) -> None:
        """Another process decides from now on; what was taken stays counted."""
        self._waiting.clear()
        self._released.clear()

    def _total(self) -> int:
        return sum(count for _, count in self._counted)

    def _expire(self, now: float) -> None:
        while self._counted and self._counted[0][0] + self._kept_seconds <= now:
            self._counted.popleft()
        if not self._counted or now - self._counted[-1][0] > _SPARE_SECONDS:
            self._spare = 0
