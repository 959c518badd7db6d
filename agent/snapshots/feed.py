"""Changes of the cache for those who watch it: the newest state of each snapshot, never a queue that grows.

Why this exists: a slow reader must cost no more than a fast one. Each watcher has the set of names that changed since
it last looked, in the order of their newest change; what a name means is looked up when it is sent. What came and went
meanwhile it is never told of, so there are at most as many names as it knows and as there are.
"""

import asyncio
import enum
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Change(enum.Enum):
    """What happened to a name."""

    ADDED = 1
    CHANGED = 2
    REMOVED = 3


class Watcher:
    """One watcher's names still to be told of, each once, with the revision of its newest change."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        """Revision of the cache when the watch began."""
        self._changed: dict[str, int] = {}
        self._unheard_of: set[str] = set()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Return how many names are still to be told of."""
        return len(self._changed)

    def note(self, name: str, revision: int, change: Change) -> None:
        """Remember that a name has changed; the newest change goes last, so that revisions grow."""
        if change is Change.ADDED and name not in self._changed:
            self._unheard_of.add(name)
        self._changed.pop(name, None)
        if change is Change.REMOVED and name in self._unheard_of:
            self._unheard_of.discard(name)
            return
        self._changed[name] = revision
        self._wake.set()

    def has_told(self, names: Iterable[str]) -> None:
        """Remember that the reader has been told of these names otherwise, and has to hear when they go."""
        self._unheard_of.difference_update(names)

    def wake(self) -> None:
        """Let the watcher look around though nothing has changed."""
        self._wake.set()

    def take(self, limit: int) -> list[tuple[str, int]]:
        """Return at most `limit` names that changed, oldest change first, and forget them."""
        names = [name for name, _ in zip(self._changed, range(limit), strict=False)]
        taken = [(name, self._changed.pop(name)) for name in names]
        self._unheard_of.difference_update(names)
        if not self._changed:
            self._wake.clear()
        return taken

    async def wait(self, timeout_seconds: float) -> bool:
        """Wait until there is something to look at; False when the time is over first."""
        if self._changed:
            return True
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True


class ChangeFeed:
    """Counts changes and hands them to the watchers. `revision` grows with each change."""

    def __init__(self) -> None:
        self.revision = 0
        self._watchers: set[Watcher] = set()

    def publish(self, name: str, change: Change) -> int:
        """Note a change of a snapshot and return its revision."""
        self.revision += 1
        for watcher in self._watchers:
            watcher.note(name, self.revision, change)
        return self.revision

    def wake_all(self) -> None:
        """Let every watcher look around, because the whole cache has become unavailable or closes."""
        for watcher in self._watchers:
            watcher.wake()

    @contextmanager
    def watching(self) -> Iterator[Watcher]:
        """Give a watcher that is told of changes while the block runs."""
        watcher = Watcher(self.revision)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
