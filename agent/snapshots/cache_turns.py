"""Whose turn it is: the one lock of the cache, one removal at a time, and use cases that run to their end.

Why this exists: every use case decides under one lock. A removal by the engine may take minutes, and nobody but the
next removal, and who wants to keep what is being removed, may have to wait for it; so its turn outlasts the lock.
"""

import asyncio
import functools
import types
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from typing import Any, TypeVar

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
        outcome: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        work = _run(turn, use_case, outcome)
        try:
            waits_for = work.send(None)
        except StopIteration:
            return outcome.result()
        task = asyncio.ensure_future(_resumed(work, waits_for))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await outcome
        except asyncio.CancelledError:
            if outcome.done() and not outcome.cancelled():
                # It came to its end at the moment its caller went; that error is nobody's then.
                outcome.exception()
            raise


async def _run(turn: asyncio.Lock, use_case: Callable[[], Awaitable[_T]], outcome: "asyncio.Future[_T]") -> None:
    try:
        result = await use_case()
    except asyncio.CancelledError:
        outcome.cancel()
        raise
    except BaseException as error:
        # Nobody waits for a cancelled outcome: the caller has gone, and what it would have been told with it.
        if not outcome.done():
            outcome.set_exception(error)
    else:
        if not outcome.done():
            outcome.set_result(result)
    finally:
        turn.release()


@types.coroutine
def _resumed(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:  # noqa: ANN401 # whatever a coroutine yields to its loop
    """Carry on with a coroutine that has been run up to its first wait.

    So most of a use case that never waits but for one call in a thread is done before the loop's next round.
    """
    while True:
        try:
            sent = yield waits_for
        except BaseException as error:
            step = functools.partial(work.throw, error)
        else:
            step = functools.partial(work.send, sent)
        try:
            waits_for = step()
        except StopIteration:
            return
