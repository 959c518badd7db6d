"""Fixtures of end-to-end tests: VM hosts with a runtime, on the shared control plane."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from devenv.cocoon_programs import AgentProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from devenv.vm_runtime import VmRuntime
from tests.support.deletion_place import Place
from tests.support.seat_place import SeatPlace, seat_place
from tests.support.vm_host import SETS_API, VmHost, install_sets, sets_served
from tests.support.waiting import wait_for


@pytest.fixture
def cocoonsets(kube: KubeApi) -> Iterator[None]:
    """The API serves CocoonSets; those of the test are removed afterwards."""
    install_sets(kube)
    wait_for(lambda: sets_served(kube), 30, what="CocoonSets being served")
    yield
    for each in kube.items(f"{SETS_API}/namespaces/default/cocoonsets"):
        kube.discard(f"{SETS_API}/namespaces/default/cocoonsets/{each['metadata']['name']}")


@pytest.fixture
def vm_host(
    agent_process: Callable[..., AgentProcess], control_plane: ControlPlane, kube: KubeApi
) -> Iterator[Callable[..., VmHost]]:
    """A function that starts a VM host: `vm_host(settings={…})`. Its pods are removed afterwards."""
    hosts: list[VmHost] = []

    def start(settings: Mapping[str, str] | None = None) -> VmHost:
        agent = agent_process(settings)
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        runtime = VmRuntime(control_plane.client(), agent.node_name, store)
        runtime.start()
        host = VmHost(kube, agent, runtime)
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        for path in host.pods:
            kube.discard(path)
    for host in hosts:
        host.runtime.stop()
        host.runtime.kube.close()
        for path in host.pods:
            kube.discard(path, gracePeriodSeconds=0)


@pytest.fixture
def place(own_control_plane: Callable[..., ControlPlane], tmp_path: Path) -> Iterator[Place]:
    """A control plane of the test's own that serves CocoonSets, and two VM hosts."""
    plane = own_control_plane()
    kube = plane.client()
    install_sets(kube)
    wait_for(lambda: sets_served(kube), 30, what="CocoonSets being served")
    hosts = []
    for number in range(2):
        agent = AgentProcess(tmp_path / f"agent-{number}", f"host-{number}")
        agent.start()
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        runtime = VmRuntime(plane.client(), agent.node_name, store)
        runtime.start()
        hosts.append(VmHost(kube, agent, runtime))
    yield Place(plane, kube, hosts)
    for host in hosts:
        host.runtime.stop()
        host.runtime.kube.close()
        host.agent.release()
    kube.close()


@pytest.fixture
def seats(
    control_plane: ControlPlane, kube: KubeApi, cocoonsets: None, tmp_path: Path, unique_name: Callable[[str], str]
) -> Iterator[SeatPlace]:
    """A registry and a pool of its own, for hosts and a controller that releases seats."""
    with seat_place(control_plane, kube, tmp_path, unique_name("pool")) as place:
        yield place
