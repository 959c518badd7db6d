"""A suspended set gives its seat back when its snapshot is safe, and wakes on the node that kept it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support.seat_place import SeatPlace, seat_place
from tests.support.vm_host import STASH


@pytest.fixture
def seats(
    control_plane: ControlPlane, kube: KubeApi, cocoonsets: None, tmp_path: Path, unique_name: Callable[[str], str]
) -> Iterator[SeatPlace]:
    with seat_place(control_plane, kube, tmp_path, unique_name("pool")) as place:
        yield place


def test_a_suspended_vm_gives_its_seat_back_and_wakes_warm(seats: SeatPlace, unique_name: Callable[[str], str]) -> None:
    hosts = [seats.add_host(unique_name("host")) for _ in range(2)]
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    node = seats.put_to_sleep(name)
    assert node in {host.node for host in hosts}
    vm = f"vk-default-{name}-0"
    assert seats.registry.find(vm) is not None
    seats.wake(name)
    woken = seats.wait_reason(name, "Running")
    pod = seats.pod(name)
    assert pod is not None
    assert (seats.life(name), seats.restored(name), pod["spec"]["nodeName"]) == (life, "warm", node)
    assert STASH not in woken["metadata"].get("annotations", {})
    assert seats.registry.find(vm) is None
