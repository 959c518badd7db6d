"""The stand-in runtime itself: what it does around a VM is what tests of seats rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devenv.cocoon_programs import AgentProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import Json, KubeApi
from devenv.snapshot_registry import RegistryProcess, SnapshotRegistry
from devenv.vm_runtime import LIFE, RESTORED, VmRuntime
from tests.support import cluster
from tests.support.vm_host import RESTORE, VmHost, pod_path
from tests.support.waiting import wait_for

_VM = "vm.cocoonstack.io/"
HIBERNATE, STATE = f"{_VM}hibernate", f"{_VM}lifecycle-state"
OBSERVED, GENERATION = f"{_VM}lifecycle-observed-generation", "cocoonset.cocoonstack.io/generation"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SnapshotRegistry]:
    """A real registry's client."""
    with RegistryProcess(tmp_path / "registry") as process:
        client = SnapshotRegistry(f"{process.url}/vms")
        yield client
        client.close()


@pytest.fixture
def host(
    control_plane: ControlPlane,
    kube: KubeApi,
    agent_process: Callable[..., AgentProcess],
    registry: SnapshotRegistry,
) -> Iterator[VmHost]:
    """A host whose runtime knows the registry and its agent."""
    agent = agent_process()
    store = agent.root / "snapshots"
    store.mkdir(exist_ok=True)
    with (
        control_plane.client() as client,
        VmRuntime(client, agent.node_name, store, registry, agent.address) as runtime,
    ):
        made = VmHost(kube, agent, runtime)
        yield made
        for path in made.pods:
            kube.discard(path, gracePeriodSeconds=0)


def notes(host: VmHost, name: str) -> dict[str, str]:
    pod = host.kube.find(pod_path(name)) or {"metadata": {}}
    return dict(pod["metadata"].get("annotations", {}))


def wait_state(host: VmHost, name: str, state: str) -> dict[str, str]:
    wait_for(lambda: notes(host, name).get(STATE) == state, 30, what=f"pod {name} being {state}")
    return notes(host, name)


def tell(host: VmHost, name: str, **change: str | None) -> None:
    keys = {"hibernate": HIBERNATE, "generation": GENERATION}
    patch = {keys[key]: value for key, value in change.items()}
    host.kube.merge(pod_path(name), {"metadata": {"annotations": patch}})


def hibernate(host: VmHost, name: str) -> dict[str, str]:
    """Boot a VM, put it to sleep; return what the pod said while it ran."""
    host.create_pod(name, annotations={GENERATION: "1"})
    ran = wait_state(host, name, "ready")
    tell(host, name, hibernate="true", generation="2")
    wait_state(host, name, "hibernated")
    return ran


def replace(host: VmHost, name: str) -> dict[str, str]:
    """Delete the pod and create one that restores; return what it says when its VM runs."""
    host.kube.delete(pod_path(name))
    wait_for(lambda: host.kube.find(pod_path(name)) is None, 30, what="the pod being gone")
    host.create_pod(name, annotations={GENERATION: "3", RESTORE: "true"})
    return wait_state(host, name, "ready")


def running(pod: Json) -> bool:
    return "running" in pod["status"]["containerStatuses"][0]["state"]


def test_hibernates_and_wakes_warm(host: VmHost, registry: SnapshotRegistry, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pod")
    vm, ran = f"vk-default-{name}", hibernate(host, name)
    assert (ran[f"{_VM}id"] != "", ran[f"{_VM}ip"] != "", ran[OBSERVED]) == (True, True, "1")
    slept = notes(host, name)
    assert (slept[OBSERVED], f"{_VM}id" in slept, f"{_VM}ip" in slept) == ("2", False, False)
    assert not running(host.kube.get(pod_path(name)))
    pushed = registry.find(vm)
    assert pushed is not None
    assert (pushed.snapshot_id, pushed.life) == (host.snapshot_id(vm), ran[LIFE])
    tell(host, name, generation="9")
    wait_for(lambda: notes(host, name)[OBSERVED] == "9", 30, what="a later generation being observed")
    assert host.snapshot_id(vm) == pushed.snapshot_id
    woken = replace(host, name)
    assert (woken[RESTORED], woken[LIFE], woken[OBSERVED]) == ("warm", ran[LIFE], "3")
    assert running(host.kube.get(pod_path(name)))
    assert "RestoredWarm" in cluster.event_reasons(host.kube, name)


@pytest.mark.parametrize(("stale", "why"), [(True, "id"), (False, "")], ids=["stale copy", "no copy"])
def test_another_or_no_copy_is_never_restored(
    host: VmHost, registry: SnapshotRegistry, unique_name: Callable[[str], str], stale: bool, why: str
) -> None:
    name = unique_name("pod")
    vm, ran = f"vk-default-{name}", hibernate(host, name)
    pushed = registry.find(vm)
    assert pushed is not None
    if stale:
        host.write(vm)
    else:
        (host.runtime.store / vm).rename(host.runtime.store / ".gone")
    woken = replace(host, name)
    assert (woken[RESTORED], woken[LIFE], host.snapshot_id(vm)) == ("cold", ran[LIFE], pushed.snapshot_id)
    assert why in host.runtime.restores[-1].why != ""
    assert "RestoredCold" in cluster.event_reasons(host.kube, name)


def test_a_lost_tag_boots_nothing(host: VmHost, registry: SnapshotRegistry, unique_name: Callable[[str], str]) -> None:
    name = unique_name("pod")
    hibernate(host, name)
    registry.delete(f"vk-default-{name}")
    tell(host, name, hibernate=None)
    failed = wait_state(host, name, "failed")
    assert f"{_VM}id" not in failed


def test_told_to_wake_in_place_and_to_sleep_again(
    host: VmHost, registry: SnapshotRegistry, unique_name: Callable[[str], str]
) -> None:
    name = unique_name("pod")
    vm, ran = f"vk-default-{name}", hibernate(host, name)
    first = registry.find(vm)
    tell(host, name, hibernate=None)
    woken = wait_state(host, name, "ready")
    assert (woken[LIFE], woken[RESTORED]) == (ran[LIFE], "warm")
    tell(host, name, hibernate="true")
    wait_state(host, name, "hibernated")
    second = registry.find(vm)
    assert first is not None
    assert second is not None
    assert (second.life, second.snapshot_id != first.snapshot_id) == (first.life, True)
