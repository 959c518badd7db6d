"""Threads for calls that block, with as little between a call and its thread as can be.

Why this exists: every answer waits for one such call at least, and an executor's futures, locks and callbacks cost a
quarter of what a look at the disk does. Calls are begun in the order in which they come.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class WorkThreads:
    """Some threads that run what an event loop hands them; they are started with the first call."""

    def __init__(self, count: int, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(count)]
        self._has_started = False
        self._is_closed = False

    async def run(self, call: Callable[[], _T]) -> _T:
        """Run a call in a thread and return or raise its outcome. Who stops waiting does not stop it once begun."""
        if self._is_closed:
            raise RuntimeError("the threads have been closed")
        if not self._has_started:
            self._has_started = True
            for thread in self._threads:
                thread.start()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()

        def work() -> None:
            # No one waits for it and it has not begun.
            if outcome.cancelled():
                return
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            # The loop may be gone when a call that hung comes back after all.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_tell, outcome, result, error)

        self._work.put(work)
        return await outcome

    def close(self) -> None:
        """End the threads after what has been handed to them; blocks. May be repeated."""
        self._is_closed = True
        if not self._has_started:
            return
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            # Between two calls nothing of the last one is to be kept alive.
            del work


def _tell(outcome: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:  # noqa: ANN401 # whatever the call returns
    if outcome.done():
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)
