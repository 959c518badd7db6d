"""Many sets suspended and woken at once: every seat is freed, every VM comes back, most where their copies are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devenv.vm_runtime import LIFE, RESTORED
from tests.support.metrics import metric
from tests.support.seat_place import SeatPlace, annotation, until
from tests.support.vm_host import SETS_API

_PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.timeout(1200)
def test_many_sets_give_their_seats_back_and_wake_at_once(
    seats: SeatPlace,
    unique_name: Callable[[str], str],
    long_profile: bool,
    record_property: Callable[[str, object], None],
) -> None:
    for _ in range(2):
        seats.add_host(unique_name("host"))
    controller = seats.controller()
    names = [unique_name("set") for _ in range(500 if long_profile else 40)]

    def phases() -> dict[str, str]:
        items = seats.kube.items(f"{SETS_API}/namespaces/default/cocoonsets")
        return {each["metadata"]["name"]: each.get("status", {}).get("phase", "") for each in items}

    def pods() -> dict[str, dict[str, object]]:
        found = seats.kube.items(_PODS, labelSelector="cocoonset.cocoonstack.io/name")
        return {each["metadata"]["labels"]["cocoonset.cocoonstack.io/name"]: each for each in found}

    def wait_all(phase: str) -> None:
        until(lambda: all(phases().get(name) == phase for name in names), f"every set being {phase}", 600)

    for name in names:
        seats.create_set(name)
    wait_all("Running")
    lives = {name: annotation(pod, LIFE) for name, pod in pods().items()}
    for name in names:
        seats.suspend(name)
    wait_all("Suspended")
    until(lambda: not pods(), "every seat being free", 120)
    for name in names:
        seats.wake(name)
    wait_all("Running")
    woken = pods()
    assert {name: annotation(woken[name], LIFE) for name in names} == lives
    warm = sum(annotation(woken[name], RESTORED) == "warm" for name in names)
    record_property("warm_landings", warm)
    print(f"{warm} of {len(names)} woke warm")
    assert metric(controller.http_address, "cocoon_node_seat_release_pods_deleted_total") == len(names)
    landed = sum(
        metric(controller.http_address, "cocoon_node_seat_release_wake_total", placement=where)
        for where in ("hint-node", "pool")
    )
    assert landed == len(names)
