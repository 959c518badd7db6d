"""Whether the API server is out of reach, and what follows for watches when it is back.

Why this exists: a watch only listens. When the way to the API server breaks without a word, behind a router that forgot
the connection or a machine that lost power, requests fail and are sent anew, but a watch would wait for its inactivity
limit before anything is read again. So as soon as a request is answered after one that was not, every watch that has
heard nothing since is given up. Opened anew from its last version, it has missed nothing, however wrong the doubt was.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Watch:
    """A stream that is open or being opened; its reader sets `heard_at`, monotonic seconds, at each sign of life."""

    limit: asyncio.Timeout
    heard_at: float


class Reach:
    """Told of every request how it ended, by the one who sends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """The server counts as being in reach until told otherwise."""
        self._clock = clock
        self._answered_at = clock()
        self._lost_at: float | None = None
        self._watches: set[Watch] = set()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watch]:
        """Have the body given up, which raises TimeoutError, once it is in doubt whether its stream still lives."""
        async with asyncio.timeout(None) as limit:
            watch = Watch(limit, self._clock())
            self._watches.add(watch)
            try:
                yield watch
            finally:
                self._watches.discard(watch)

    def failed(self, sent_at: float) -> None:
        """No answer came to a request that was sent then; only when none came to any other, nobody is reached."""
        if self._answered_at < sent_at:
            self._lost_at = max(sent_at, self._lost_at or sent_at)

    def answered(self) -> None:
        """An answer came, whatever it says."""
        self._answered_at = self._clock()
        if self._lost_at is None:
            return
        lost_at, self._lost_at = self._lost_at, None
        for watch in [each for each in self._watches if each.heard_at < lost_at]:
            self._watches.discard(watch)
            watch.limit.reschedule(asyncio.get_running_loop().time())
