"""Threads that run what an event loop hands them."""

import asyncio
import functools
import threading

import pytest

from agent.snapshots.work_threads import WorkThreads


def note(done: list[int], number: int) -> int:
    done.append(number)
    return number


def fail() -> None:
    raise ValueError("as it should")


async def test_outcomes_come_back_and_the_order_is_kept() -> None:
    threads = WorkThreads(1, "test")
    done: list[int] = []
    try:
        results = await asyncio.gather(*(threads.run(functools.partial(note, done, number)) for number in range(9)))
        assert results == done == list(range(9))
        with pytest.raises(ValueError, match="as it should"):
            await threads.run(fail)
        assert await threads.run(threading.get_ident) != threading.get_ident()
    finally:
        threads.close()


async def test_who_stops_waiting_stops_only_what_has_not_begun() -> None:
    threads, begun, go_on, done = WorkThreads(1, "test"), threading.Event(), threading.Event(), []

    def hold() -> None:
        begun.set()
        go_on.wait(30)
        done.append("first")

    try:
        first = asyncio.create_task(threads.run(hold))
        second = asyncio.create_task(threads.run(lambda: done.append("second")))
        await asyncio.to_thread(begun.wait, 30)
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        go_on.set()
        await threads.run(lambda: done.append("third"))
        assert done == ["first", "third"]
    finally:
        go_on.set()
        threads.close()


async def test_they_end_after_what_was_handed_to_them() -> None:
    threads, done = WorkThreads(2, "test"), []
    waiting = asyncio.create_task(threads.run(lambda: done.append(1)))
    await asyncio.sleep(0)
    await asyncio.to_thread(threads.close)
    await waiting
    assert done == [1]
    threads.close()
    with pytest.raises(RuntimeError):
        await threads.run(fail)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-")]
