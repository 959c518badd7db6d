"""When nodes are told of pods whose snapshots are promised already, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from controller.deletion.gathering import Gathering
from controller.deletion.pace import Pace
from tests.support.virtual_time import run_virtually

PACE = Pace(leave=0.2, leave_rate=100.0, leave_longest=10.0)
Told = list[tuple[str, float]]


def gather(scene: Callable[[Gathering, Told], Awaitable[None]]) -> Told:
    """Play a scene; return who was told, and when in seconds."""

    async def run() -> Told:
        loop = asyncio.get_running_loop()
        told: Told = []
        gathering = Gathering(lambda node: told.append((node, loop.time())), PACE, loop.time)
        task = asyncio.create_task(gathering.run())
        await scene(gathering, told)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return told

    return run_virtually(run())


def test_a_node_is_told_once_of_all_that_went_meanwhile() -> None:
    async def scene(gathering: Gathering, told: Told) -> None:
        for _ in range(15):
            gathering.add("host-0")
            await asyncio.sleep(0.01)
        assert told == []
        await asyncio.sleep(1)

    ((node, at),) = gather(scene)
    assert node == "host-0"
    assert at == pytest.approx(PACE.leave)


def test_a_node_that_is_being_told_anyway_is_not_told_again() -> None:
    async def scene(gathering: Gathering, _: Told) -> None:
        gathering.add("host-0")
        gathering.add("host-1")
        gathering.discard("host-0")
        gathering.discard("host-2")
        await asyncio.sleep(5)
        assert len(gathering) == 0

    assert [node for node, _ in gather(scene)] == ["host-1"]


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.2), (50, 0.7), (800, 8.2), (5000, 10.2)])
def test_many_are_told_evenly_and_the_last_one_in_time(count: int, seconds: float) -> None:
    async def scene(gathering: Gathering, _: Told) -> None:
        for number in range(count):
            gathering.add(f"host-{number}")
        await asyncio.sleep(60)

    told = gather(scene)
    assert [node for node, _ in told] == [f"host-{number}" for number in range(count)]
    times = [at for _, at in told]
    assert times[-1] == pytest.approx(seconds, rel=0.05)
    steps = [late - early for early, late in pairwise(times)]
    assert all(step <= 1 / PACE.leave_rate + 1e-6 for step in steps)
    assert all(step >= PACE.leave_longest / 5000 * 0.9 for step in steps)


def test_nobody_waits_longer_while_others_come() -> None:
    """Five hundred pods a second go on a thousand nodes, for a minute."""
    added: dict[str, float] = {}
    waits: list[float] = []

    async def scene(gathering: Gathering, told: Told) -> None:
        for number in range(30_000):
            node = f"host-{number % 1000}"
            for each, at in told:
                waits.append(at - added.pop(each))
            told.clear()
            added.setdefault(node, asyncio.get_running_loop().time())
            gathering.add(node)
            await asyncio.sleep(0.002)

    gather(scene)
    assert len(waits) == pytest.approx(6000, rel=0.1)
    assert max(waits) <= PACE.leave + PACE.leave_longest * 1.02
