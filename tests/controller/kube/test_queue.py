"""The work queue: once per name, fair, and patient with what fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from controller.kube.errors import Conflict, ServerError
from controller.kube.queue import Backoff, WorkQueue
from tests.support.waiting import wait_for_async

QUICK = Backoff(first_seconds=0.02, longest_seconds=0.1)


@contextlib.asynccontextmanager
async def working(queue: WorkQueue, work: Callable[[str], Awaitable[None]], workers: int = 1) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(work, workers=workers))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Work:
    """Notes names; blocks while its gate is closed; raises what it is given."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.running = 0
        self.most_running = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.errors: dict[str, list[Exception]] = {}

    async def __call__(self, name: str) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            self.done.append(name)
            if self.errors.get(name):
                raise self.errors[name].pop(0)
        finally:
            self.running -= 1


def set_clock(queue: WorkQueue, clock: list[float], seconds: float) -> None:
    """Move the clock; the queue sleeps by the real one, so it is woken as if time had passed."""
    clock[0] = seconds
    queue._wakeup.set()


async def test_a_name_added_many_times_is_worked_on_once() -> None:
    queue, work = WorkQueue(), Work()
    for name in ("a", "b", "a", "a", "b"):
        queue.add(name)
    async with working(queue, work):
        await wait_for_async(lambda: len(queue) == 0)
    assert work.done == ["a", "b"]


async def test_a_name_added_while_worked_on_is_worked_on_once_more() -> None:
    queue, work = WorkQueue(), Work()
    work.gate.clear()
    queue.add("a")
    async with working(queue, work, workers=4):
        await wait_for_async(lambda: work.running == 1)
        for _ in range(3):
            queue.add("a")
        await asyncio.sleep(0)
        assert work.running == 1, "never twice at once"
        work.gate.set()
        await wait_for_async(lambda: len(queue) == 0)
    assert work.done == ["a", "a"]


async def test_no_more_workers_than_allowed() -> None:
    queue, work = WorkQueue(), Work()
    work.gate.clear()
    for turn in range(20):
        queue.add(f"n{turn}")
    async with working(queue, work, workers=3):
        await wait_for_async(lambda: work.running == 3)
        work.gate.set()
        await wait_for_async(lambda: len(work.done) == 20)
    assert work.most_running == 3


async def test_a_busy_name_does_not_keep_the_others_waiting() -> None:
    queue = WorkQueue()
    done: list[str] = []

    async def work(name: str) -> None:
        done.append(name)
        if name == "busy" and len(done) < 50:
            queue.add("busy")

    for name in ("busy", "a", "b", "c"):
        queue.add(name)
    async with working(queue, work):
        await wait_for_async(lambda: {"a", "b", "c"} <= set(done))
    assert done[:4] == ["busy", "a", "b", "c"]


@pytest.mark.parametrize("error", [Conflict("changed"), ServerError("broken"), RuntimeError("a fault of ours")])
async def test_a_failed_name_is_tried_again_and_others_go_on(error: Exception) -> None:
    queue, work = WorkQueue(backoff=QUICK), Work()
    work.errors["a"] = [error, error, error]
    queue.add("a")
    queue.add("b")
    async with working(queue, work):
        await wait_for_async(lambda: work.done.count("a") == 4)
        await wait_for_async(lambda: queue.failures("a") == 0)
    assert work.done.count("b") == 1


async def test_adding_a_failing_name_does_not_shorten_its_wait() -> None:
    clock = [0.0]
    queue, work = WorkQueue(backoff=Backoff(10.0, 60.0), clock=lambda: clock[0]), Work()
    work.errors["a"] = [ServerError("broken")]
    queue.add("a")
    async with working(queue, work):
        await wait_for_async(lambda: queue.failures("a") == 1)
        queue.add("a")
        queue.add("b")
        await wait_for_async(lambda: "b" in work.done)
        assert work.done.count("a") == 1
        set_clock(queue, clock, 11.0)
        queue.add("b")
        await wait_for_async(lambda: work.done.count("a") == 2)


async def test_the_servers_wish_is_the_least_wait() -> None:
    clock = [0.0]
    queue, work = WorkQueue(backoff=QUICK, clock=lambda: clock[0]), Work()
    work.errors["a"] = [ServerError("later", retry_after_seconds=30.0)]
    queue.add("a")
    async with working(queue, work):
        await wait_for_async(lambda: queue.failures("a") == 1)
        set_clock(queue, clock, 29.0)
        queue.add("a")
        queue.add("b")
        await wait_for_async(lambda: "b" in work.done)
        assert work.done.count("a") == 1
        set_clock(queue, clock, 31.0)
        queue.add("b")
        await wait_for_async(lambda: work.done.count("a") == 2)


async def test_a_delayed_name_comes_in_its_time_or_earlier_when_asked() -> None:
    clock = [0.0]
    queue, work = WorkQueue(clock=lambda: clock[0]), Work()
    queue.add_after("a", 100)
    queue.add_after("b", 50)
    queue.add_after("a", 60)
    async with working(queue, work):
        queue.add("now")
        await wait_for_async(lambda: work.done == ["now"])
        set_clock(queue, clock, 55.0)
        queue.add("now")
        await wait_for_async(lambda: "b" in work.done)
        assert "a" not in work.done
        queue.add("a")
        await wait_for_async(lambda: "a" in work.done)
        set_clock(queue, clock, 200.0)
        queue.add("now")
        await wait_for_async(lambda: work.done.count("now") == 3)


async def test_cancelling_ends_the_work_under_way() -> None:
    queue, work = WorkQueue(), Work()
    work.gate.clear()
    queue.add("a")
    async with working(queue, work):
        await wait_for_async(lambda: work.running == 1)
    assert work.running == 0


def test_pauses_double_up_to_the_longest_with_jitter() -> None:
    backoff = Backoff(1.0, 60.0)
    for failures, whole in ((1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (10_000, 60.0)):
        assert all(whole / 2 <= backoff.pause_seconds(failures) <= whole for _ in range(20))


async def test_what_is_over_ends_the_wait_of_one_name_or_of_all() -> None:
    """An hour of backoff is left when agent or API come back; who did not fail is not woken."""
    queue, work = WorkQueue(backoff=Backoff(first_seconds=3600, longest_seconds=3600)), Work()
    work.errors = {name: [ServerError("500", status_code=500)] for name in ("a", "b", "c")}
    for name in ("a", "b", "c", "d"):
        queue.add(name)
    async with working(queue, work):
        await wait_for_async(lambda: len(work.done) == 4)
        queue.hasten("a")
        queue.hasten("d")
        await wait_for_async(lambda: len(work.done) == 5)
        assert work.done == ["a", "b", "c", "d", "a"]
        assert queue.failures("b") == 1
        queue.hasten_all(0.05)
        assert queue.failures("b") == 0
        await wait_for_async(lambda: len(work.done) == 7)
    assert sorted(work.done[5:]) == ["b", "c"]


async def test_hastened_while_worked_on_fails_like_the_first_time() -> None:
    queue, work = WorkQueue(backoff=Backoff(first_seconds=3600, longest_seconds=3600)), Work()
    work.errors["a"] = [ServerError("500", status_code=500)]
    work.gate.clear()
    queue.add("a")
    async with working(queue, work):
        await wait_for_async(lambda: work.running == 1)
        queue.hasten("a")
        work.gate.set()
        await wait_for_async(lambda: queue.failures("a") == 1)
    assert work.done == ["a"]
