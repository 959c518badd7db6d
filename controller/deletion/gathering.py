"""Nodes to be told of pods that are gone and whose snapshots are promised already: evenly, when there are many.

Why this exists: a promise is an answer that somebody waits for, and so is a purge; that a claim is gone is not, once
the promise is given. A full set of owners costs several times what a promise does, so hundreds of them a second would
hold up the promises. A node is told a moment later, and with all that went meanwhile.
"""

import asyncio
from collections.abc import Callable

from controller.deletion.pace import Pace


class Gathering:
    """Names nodes one after the other, whoever waits longest first. `run` until cancelled."""

    def __init__(self, tell: Callable[[str], None], pace: Pace, clock: Callable[[], float]) -> None:
        """`tell` is called with each node when it is due; `clock` gives monotonic seconds."""
        self._tell = tell
        self._pace = pace
        self._clock = clock
        self._since: dict[str, float] = {}
        self._wakeup = asyncio.Event()

    def __len__(self) -> int:
        """Nodes that wait."""
        return len(self._since)

    def add(self, node: str) -> None:
        """Tell this node soon; a node that waits already goes on waiting from when it was first added."""
        if node not in self._since:
            self._since[node] = self._clock()
            self._wakeup.set()

    def discard(self, node: str) -> None:
        """The node is being told now."""
        self._since.pop(node, None)

    async def run(self) -> None:
        """Tell until cancelled."""
        while True:
            if not self._since:
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            node, since = next(iter(self._since.items()))
            wait = since + self._pace.leave - self._clock()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            del self._since[node]
            self._tell(node)
            await asyncio.sleep(self._step())

    def _step(self) -> float:
        """Seconds until the next one: the faster the more wait, so that the last one is told in time."""
        if not self._since:
            return 1 / self._pace.leave_rate
        newest = next(reversed(self._since.values()))
        left = max(0.0, newest + self._pace.leave_longest - self._clock())
        return min(1 / self._pace.leave_rate, left / len(self._since))
