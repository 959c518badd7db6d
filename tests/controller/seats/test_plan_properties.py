"""Whatever happens in whatever order, with controllers that end between any two steps: no VM is lost, all end right."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from controller.seats.model import Phase, Reason
from tests.controller.seats.world import StopError, World

_EVENTS = {"runtime": 6, "schedule": 3, "show": 6, "work": 8, "suspend": 2, "wake": 2, "edit": 1, "registry": 1}
_STEPS = 150


def happen(world: World, event: str, chance: random.Random) -> None:
    """Let one thing happen."""
    match event:
        case "suspend" | "wake":
            world.ask(suspended=event == "suspend")
        case "registry":
            world.registry_works = not world.registry_works
        case "work":
            work(world, chance)
        case _:
            getattr(world, event)()


def work(world: World, chance: random.Random) -> None:
    """Let a controller work, which may end after any of its steps; other things happen between them."""
    situation, steps = world.decide(world.situation())
    for step in steps:
        try:
            world.do(situation.cocoon_set, step)
        except StopError:
            return
        if chance.random() < 0.1:
            return
        if chance.random() < 0.2:
            happen(world, chance.choice(["runtime", "show", "schedule", "suspend", "wake"]), chance)


def walk(seed: int, **more: int) -> World:
    """Return a world after many things happened in an order that the seed decides, some of them more often."""
    chance = random.Random(seed)  # noqa: S311 - a test's chance, no secret
    weights = {name: weight * chance.choice([0.2, 1, 1, 3]) for name, weight in (_EVENTS | more).items()}
    world = World()
    for event in chance.choices(list(weights), list(weights.values()), k=_STEPS):
        happen(world, event, chance)
    return world


def settle(world: World) -> None:
    """Let everything be done that is to be done."""
    world.registry_works = True
    for _ in range(40):
        world.show()
        situation, steps = world.decide(world.situation())
        for step in steps:
            try:
                world.do(situation.cocoon_set, step)
            except StopError:
                break
        world.schedule()
        world.runtime()
    world.show()


seeds = st.lists(st.integers(0, 2**32), min_size=12, max_size=12)


@given(seeds)
def test_no_order_of_things_loses_a_vm(chosen: list[int]) -> None:
    for seed in chosen:
        world = walk(seed)
        settle(world)
        # A plan that has nothing to do writes nothing: no two statuses write each other over.
        assert world.decide(world.situation())[1] == (), seed
        if world.cocoon_set.suspended:
            assert world.cocoon_set.phase is Phase.SUSPENDED, seed
            assert world.pod is None, seed
            world.ask(suspended=False)
            settle(world)
        assert world.cocoon_set.phase is Phase.RUNNING, seed
        assert world.vm == world.life, seed
        assert world.cocoon_set.stash == "", seed


@given(seeds)
@example([48234] * 12)
def test_no_vm_is_booted_over_a_snapshot_whatever_is_lost(chosen: list[int]) -> None:
    """The registry loses tags, hosts give copies up, pods are deleted; the world itself tells a boot that is wrong."""
    for seed in chosen:
        world = walk(seed, lose=1, collect=1, vanish=1)
        world.ask(suspended=False)
        settle(world)
        phase, reason = world.cocoon_set.phase, world.cocoon_set.reason
        is_stuck = world.pod is not None and world.pod.restores and not world.pod.vm_live and world.lossy
        assert phase is Phase.RUNNING or reason is Reason.SNAPSHOT_MISSING or is_stuck, seed
