"""A controller killed between any two steps, or at any moment: sets end where they should, with the same VM.

A VM that came back has the life it was put to sleep with; one booted fresh over a snapshot would have another.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

import pytest

from devenv.cocoon_programs import ControllerProcess
from devenv.errors import DevenvError
from tests.support import crashing_controller
from tests.support.seat_place import SeatPlace, annotation, until
from tests.support.vm_host import STASH

# Whoever follows a killed leader waits for its Lease to run out.
QUICK = {
    "COCOON_NODE_CONTROLLER_LEASE_DURATION_SECONDS": "1",
    "COCOON_NODE_CONTROLLER_RENEW_DEADLINE_SECONDS": "0.8",
    "COCOON_NODE_CONTROLLER_RETRY_PERIOD_SECONDS": "0.2",
}
SUSPENDING = [
    "before STATUS",
    "after STATUS",
    "before HIBERNATE",
    "after HIBERNATE",
    "before ASK_REGISTRY",
    "before READ_SET",
    "before STASH",
    "after STASH",
    "before FLAG",
    "after FLAG",
    "before DELETE",
    "after DELETE",
    "before STATUS",
    "after STATUS",
]
WAKING = [
    "before ASK_REGISTRY",
    "before STATUS",
    "after STATUS",
    "before CREATE",
    "after CREATE",
    "before CLEAR_STASH",
    "after CLEAR_STASH",
    "before STATUS",
    "after STATUS",
    "before DROP_TAG",
    "after DROP_TAG",
    "before STATUS",
    "after STATUS",
]


def crash_at_each(controller: ControllerProcess, points: Sequence[str]) -> None:
    """Start the controller once for each point and wait until it has ended itself there."""
    for point in points:
        controller.settings["CRASH_AT"] = point
        try:
            controller.start()
        except DevenvError as error:
            assert "ended with status" in str(error), point  # noqa: PT017 - it got there before it was ready
        until(lambda: not controller.process.running, f"the controller ending itself {point}")
    controller.settings.pop("CRASH_AT")


@pytest.mark.timeout(300)
def test_killed_between_any_two_steps_a_set_goes_to_sleep_and_wakes(
    seats: SeatPlace, unique_name: Callable[[str], str]
) -> None:
    host = seats.add_host(unique_name("host"))
    controller = seats.controller(QUICK, command=[sys.executable, crashing_controller.__file__, "run"])
    name = unique_name("set")
    life = seats.run(name)
    controller.stop()
    seats.suspend(name)
    crash_at_each(controller, SUSPENDING)
    controller.start()
    found = seats.wait_phase(name, "Suspended")
    assert found["metadata"]["annotations"][STASH] == host.node
    until(lambda: seats.pod(name) is None, "the seat being free")
    controller.stop()
    seats.wake(name)
    crash_at_each(controller, WAKING)
    controller.start()
    woken = seats.wait_reason(name, "Running")
    assert (seats.life(name), seats.restored(name)) == (life, "warm")
    assert STASH not in woken["metadata"].get("annotations", {})
    assert seats.registry.find(f"vk-default-{name}-0") is None


@pytest.mark.timeout(1800)
def test_killed_at_random_moments_no_vm_is_lost(
    seats: SeatPlace, unique_name: Callable[[str], str], long_profile: bool
) -> None:
    for _ in range(2):
        seats.add_host(unique_name("host"))
    controller = seats.controller(QUICK)
    names = [unique_name("set") for _ in range(4)]
    lives = {name: seats.run(name) for name in names}
    chance = random.Random(11)  # noqa: S311 - a test's chance, no secret
    for _ in range(200 if long_profile else 20):
        name = chance.choice(names)
        seats.suspend(name, suspended=chance.random() < 0.5)
        steps = chance.randrange(4)
        before = [seats.read_set(each)["metadata"]["resourceVersion"] for each in names]
        until(
            lambda steps=steps, before=before: (
                steps == 0  # type: ignore[misc]  # bound now
                or [seats.read_set(each)["metadata"]["resourceVersion"] for each in names] != before
                or all(is_settled(seats, each) for each in names)
            ),
            "something happening",
        )
        controller.kill()
        controller.start()
        for each in names:
            assert annotation(seats.pod(each), "stand-in.vm.cocoonstack.io/life") in ("", lives[each])
    for name in names:
        seats.wake(name)
    for name in names:
        seats.wait_phase(name, "Running", 120)
        assert seats.life(name) == lives[name]


def is_settled(seats: SeatPlace, name: str) -> bool:
    """Whether a set is where it is asked to be."""
    found = seats.read_set(name)
    phase = "Suspended" if found["spec"].get("suspend") else "Running"
    return bool(found.get("status", {}).get("phase") == phase)
