"""Whatever happens in whatever order, with controllers that end between any two steps: no VM is lost, all end right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.seats.model import Phase
from tests.controller.seats.world import StopError, World

_EVENTS = ["runtime", "runtime", "schedule", "show", "show", "suspend", "wake", "edit", "registry", "work", "work"]


def happen(world: World, event: str, chance: st.DataObject) -> None:  # noqa: C901 - one arm for each event
    """Let one thing happen; a controller's work may end after any of its steps, with things happening between."""
    match event:
        case "runtime":
            world.runtime()
        case "schedule":
            world.schedule()
        case "show":
            world.show()
        case "suspend" | "wake":
            world.ask(suspended=event == "suspend")
        case "edit":
            world.edit()
        case "registry":
            world.registry_works = not world.registry_works
        case _:
            situation, steps = world.decide(world.situation())
            for step in steps:
                try:
                    world.do(situation.cocoon_set, step)
                except StopError:
                    return
                # A crash, the next step at once, or something in between.
                after = chance.draw(st.sampled_from(["go on", "go on", "crash", "runtime", "show", "suspend", "wake"]))
                if after == "crash":
                    return
                if after != "go on":
                    happen(world, after, chance)


def settle(world: World) -> None:
    """Let everything be done that is to be done."""
    world.registry_works = True
    for _ in range(60):
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


@given(st.data(), st.lists(st.sampled_from(_EVENTS), max_size=80))
def test_no_order_of_things_loses_a_vm(chance: st.DataObject, events: list[str]) -> None:
    world = World()
    for event in events:
        happen(world, event, chance)
    settle(world)
    if world.cocoon_set.suspended:
        assert world.cocoon_set.phase is Phase.SUSPENDED
        assert world.pod is None
        world.ask(suspended=False)
        settle(world)
    assert world.cocoon_set.phase is Phase.RUNNING
    assert world.vm == world.life
    assert world.cocoon_set.stash == ""
    assert world.decide(world.situation())[1] == ()


@given(st.data(), st.lists(st.sampled_from(_EVENTS), max_size=40))
def test_what_is_settled_stays_settled(chance: st.DataObject, events: list[str]) -> None:
    """A plan that has nothing to do writes nothing, whatever led there: no two statuses write each other over."""
    world = World()
    for event in events:
        happen(world, event, chance)
    settle(world)
    assert world.decide(world.situation())[1] == ()
