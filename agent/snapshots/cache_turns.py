"""Whose turn it is: the one lock of the cache, one removal at a time, and use cases that run to their end.

Why this exists: every use case decides under one lock. A removal by the engine may take minutes, and nobody but the
next removal, and who wants to keep what is being removed, may have to wait for it; so its turn outlasts the lock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

_T = TypeVar("_T")


class Turns:
    """The locks of a cache, used on the event loop only. `lock` is taken by itself only within a turn."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self._removal = asyncio.Lock()
        self._removing: dict[str, asyncio.Future[None]] = {}
        self._running: set[asyncio.Task[object]] = set()

    async def exclusively(self, use_case: Callable[[], Awaitable[_T]]) -> _T:
        """Run a use case under the lock, to its end even when the caller stops waiting for it."""
        return await self._in_turn(self.lock, use_case)

    async def one_removal(self, use_case: Callable[[], Awaitable[_T]]) -> _T:
        """Run a use case that removes, while no other does; it takes the lock for what it decides."""
        return await self._in_turn(self._removal, use_case)

    def removal_began(self, name: str) -> None:
        """Note that a snapshot is being removed and the lock will be given back meanwhile."""
        self._removing[name] = asyncio.get_running_loop().create_future()

    def removal_ended(self, name: str) -> None:
        """Note that it is decided what has become of it; let those go on that wait for it."""
        ended = self._removing.pop(name, None)
        if ended is not None:
            ended.set_result(None)

    def is_removing(self, names: Collection[str]) -> bool:
        """Whether one of these snapshots is being removed."""
        return not self._removing.keys().isdisjoint(names)

    async def wait_for_removals(self, names: Collection[str]) -> None:
        """Return when none of these snapshots is being removed."""
        while self.is_removing(names):
            await asyncio.wait([self._removing[name] for name in names if name in self._removing])

    async def settle_running(self) -> None:
        """Wait for use cases that have begun."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel_running(self) -> None:
        """Break off use cases wherever they are, as the end of the process would."""
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _in_turn(self, turn: asyncio.Lock, use_case: Callable[[], Awaitable[_T]]) -> _T:
        await turn.acquire()

        async def run() -> _T:
            try:
                return await use_case()
            finally:
                turn.release()

        task = asyncio.ensure_future(run())
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # The caller may have stopped waiting; then nobody else looks at the outcome.
            task.exception()
