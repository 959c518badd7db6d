"""The brake on purges that follow deletions nobody saw.

Why this exists: a wrong picture of the cluster shows itself as many deletions at once. What is purged cannot be brought
back, what waits ten minutes can be purged then, and a person has time to look.
"""

from collections import deque


class Brake:
    """At most `limit` purges in any `window_seconds`; times are monotonic seconds."""

    def __init__(self, limit: int = 100, window_seconds: float = 600.0) -> None:
        """Released, with nothing counted yet."""
        self._limit = limit
        self._window = window_seconds
        self._taken: deque[float] = deque()
        self._waiting: set[str] = set()
        self._released: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many purges wait."""
        return len(self._waiting)

    def take(self, name: str, now: float) -> bool:
        """Ask to go on with the purge called `name`; one that may not waits until it asks again or is forgotten."""
        while self._taken and self._taken[0] <= now - self._window:
            self._taken.popleft()
        if name in self._released:
            self._released.discard(name)
        elif len(self._taken) >= self._limit:
            self._waiting.add(name)
            return False
        else:
            self._taken.append(now)
        self._waiting.discard(name)
        return True

    def seconds_until_free(self, now: float) -> float:
        """How long until the next purge may go on."""
        if len(self._taken) < self._limit:
            return 0.0
        return max(0.0, self._taken[0] + self._window - now)

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
