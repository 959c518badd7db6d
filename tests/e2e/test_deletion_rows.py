"""Each row of the decision table, end to end: pods are deleted, and what is on the disk tells what was decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from devenv.cocoon_programs import ControllerProcess
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.snapshot_calls import retention, snapshots, state
from tests.support.vm_host import KEEP, RESTORE, STASH, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

Hosts = Callable[..., VmHost]
Controllers = Callable[..., ControllerProcess]
Name = Callable[[str], str]
SECONDS = 40.0


@pytest.fixture
def host(vm_host: Hosts, cocoonsets: None) -> VmHost:
    """A host without a controller yet."""
    return vm_host()


@pytest.fixture
def controller(host: VmHost, controller_process: Controllers, kube: KubeApi) -> ControllerProcess:
    """A controller of that host."""
    controller = controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    return controller


def _claimed_pod(host: VmHost, name: str, **options: Any) -> str:  # noqa: ANN401 - those of create_pod
    """Make a pod with a snapshot that its agent knows to be claimed; return the VM's name."""
    host.create_pod(name, **options)
    vm = f"vk-default-{name}"
    host.write(vm)
    _wait_state(host, vm, "IN_USE")
    return vm


def _wait_state(host: VmHost, snapshot: str, wanted: str) -> None:
    wait_for(lambda: state(host.agent.address, snapshot) == wanted, SECONDS, what=f"{snapshot} being {wanted}")


def _annotate(kube: KubeApi, path: str, annotations: Mapping[str, str | None]) -> None:
    kube.merge(path, {"metadata": {"annotations": dict(annotations)}})


def _delete_and_wait(kube: KubeApi, path: str) -> None:
    kube.delete(path)
    wait_for(lambda: kube.find(path) is None, SECONDS, what=f"{path} being gone")


def _settled_marker(host: VmHost, kube: KubeApi, name: str) -> None:
    """Return once the controller has decided something later than everything before: another pod's teardown."""
    vm = _claimed_pod(host, name)
    kube.delete(pod_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the marker being purged")


def test_unmanaged_is_left_alone(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Row 2."""
    name = unique_name("web")
    vm = _claimed_pod(host, name, managed=False)
    _delete_and_wait(kube, pod_path(name))
    _settled_marker(host, kube, unique_name("marker"))
    assert state(host.agent.address, vm) == "UNCLAIMED"


def test_foreign_names_are_left_alone(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Row 2, F31: another tenant's VM name and an image's name, claimed by annotation."""
    victim, thief, second = unique_name("victim"), unique_name("thief"), unique_name("thief")
    host.write(f"vk-other-{victim}")
    host.write("debian-12")
    host.create_pod(thief, annotations={"vm.cocoonstack.io/name": f"vk-other-{victim}"})
    host.create_pod(second, annotations={"vm.cocoonstack.io/name": "debian-12"})
    _wait_state(host, f"vk-other-{victim}", "IN_USE")
    _delete_and_wait(kube, pod_path(thief))
    _delete_and_wait(kube, pod_path(second))
    _settled_marker(host, kube, unique_name("marker"))
    assert host.has(f"vk-other-{victim}")
    assert host.has("debian-12")


def test_one_vm_name_of_two_pods(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """F29: a longer name, and two namespaces that make one VM name, never reach each other's snapshots."""
    name = unique_name("web")
    vm, longer = _claimed_pod(host, name), _claimed_pod(host, f"{name}-0")
    kube.delete(pod_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the shorter one being purged")
    assert state(host.agent.address, longer) == "IN_USE"


def test_recreated_pod_keeps_its_snapshot(
    host: VmHost, controller: ControllerProcess, kube: KubeApi, unique_name: Name
) -> None:
    """Row 3, F32: the agent is away while its pod is deleted, recreated and hibernates again."""
    name = unique_name("web")
    vm = _claimed_pod(host, name)
    host.agent.stop()
    _delete_and_wait(kube, pod_path(name))
    again = host.create_pod(name)
    written = host.write(vm)
    host.agent.start()
    wait_for(
        lambda: snapshots(host.agent.address)[vm].owner.pod_uid == again["metadata"]["uid"],
        SECONDS,
        what="the new pod owning the snapshot",
        ignoring=(KeyError,),
    )
    _settled_marker(host, kube, unique_name("marker"))
    assert host.snapshot_id(vm) == written
    assert state(host.agent.address, vm) == "IN_USE"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({RESTORE: "true"}, "GONE", id="row 4, woken"),
        pytest.param({}, "UNCLAIMED", id="row 5, booted"),
    ],
)
def test_next_pod_elsewhere(
    annotations: dict[str, str],
    expected: str,
    vm_host: Hosts,
    controller_process: Controllers,
    cocoonsets: None,
    kube: KubeApi,
    unique_name: Name,
) -> None:
    """Rows 4 and 5: what a kept copy becomes when its VM lives on another node."""
    old, new = vm_host(), vm_host()
    controller_process(old.agent, new.agent)
    cluster.wait_ready(kube, old.node)
    cluster.wait_ready(kube, new.node)
    name = unique_name("web")
    owner = create_set(kube, name)
    vm = _claimed_pod(old, f"{name}-0", annotations={KEEP: "true"}, owner=owner)
    _delete_and_wait(kube, pod_path(f"{name}-0"))
    _wait_state(old, vm, "RETAINED")
    new.create_pod(f"{name}-0", annotations=annotations, owner=owner)
    wait_for(
        lambda: kube.get(pod_path(f"{name}-0"))["metadata"]["annotations"].get("vm.cocoonstack.io/id"),
        SECONDS,
        what="the VM living",
    )
    _wait_state(old, vm, expected)


def test_kept_until_its_set_is_gone(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Rows 8 and 6."""
    name = unique_name("web")
    vm = _claimed_pod(host, f"{name}-0", owner=create_set(kube, name, suspend=True, stash=host.node))
    _annotate(kube, pod_path(f"{name}-0"), {KEEP: "true"})
    kube.delete(pod_path(f"{name}-0"))
    _wait_state(host, vm, "RETAINED")
    assert retention(host.agent.address, vm) == ("SEAT_RELEASE", None)
    kube.delete(set_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the copy of a set that is gone being purged")


def test_kept_until_its_set_hibernates_elsewhere(
    host: VmHost, controller: object, kube: KubeApi, unique_name: Name
) -> None:
    """Row 7."""
    name = unique_name("web")
    owner = create_set(kube, name, suspend=True, stash=host.node)
    vm = _claimed_pod(host, f"{name}-0", annotations={KEEP: "true"}, owner=owner)
    kube.delete(pod_path(f"{name}-0"))
    _wait_state(host, vm, "RETAINED")
    _annotate(kube, set_path(name), {STASH: "some-other-node"})
    wait_for(lambda: not host.has(vm), SECONDS, what="the stale copy being purged")


@pytest.mark.parametrize("value", ["True", "1", ""])
def test_only_true_keeps(value: str, host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """F19: any other value is no flag."""
    name = unique_name("web")
    vm = _claimed_pod(host, name, annotations={KEEP: value})
    kube.delete(pod_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the snapshot being purged")


def test_flag_taken_back_while_terminating(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """F19: the last value counts."""
    name = unique_name("web")
    host.runtime.holds = True
    vm = _claimed_pod(host, name, annotations={KEEP: "true"})
    kube.delete(pod_path(name))
    _annotate(kube, pod_path(name), {KEEP: None})
    kube.delete(pod_path(name), gracePeriodSeconds=0)
    wait_for(lambda: not host.has(vm), SECONDS, what="the snapshot being purged")
    assert kube.find(pod_path(name)) is None


def test_lost_flag_of_a_suspended_set(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Row 9."""
    name = unique_name("web")
    vm = _claimed_pod(host, f"{name}-0", owner=create_set(kube, name, suspend=True, stash=host.node))
    kube.delete(pod_path(f"{name}-0"))
    _wait_state(host, vm, "RETAINED")
    assert retention(host.agent.address, vm) == ("SEAT_RELEASE", None)


def _evict(kube: KubeApi, name: str, node: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"}}
    kube.create(f"{pod_path(name)}/eviction", body)


def _taint(kube: KubeApi, name: str, node: str) -> None:
    found: Json = kube.get(f"{cluster.NODES}/{node}")
    taints = [*found["spec"].get("taints", []), {"key": "test.example/away", "effect": "NoExecute"}]
    kube.merge(f"{cluster.NODES}/{node}", {"spec": {"taints": taints}})


@pytest.mark.parametrize("disrupt", [pytest.param(_evict, id="eviction API"), pytest.param(_taint, id="taint manager")])
def test_disruption_keeps_for_a_day(
    disrupt: Callable[[KubeApi, str, str], None],
    host: VmHost,
    controller: object,
    kube: KubeApi,
    unique_name: Name,
) -> None:
    """Row 10."""
    name = unique_name("web")
    vm = _claimed_pod(host, name)
    disrupt(kube, name, host.node)
    wait_for(lambda: kube.find(pod_path(name)) is None, SECONDS, what="the pod being evicted")
    _wait_state(host, vm, "RETAINED")
    reason, expires_at = retention(host.agent.address, vm)
    assert reason == "DISRUPTION"
    assert expires_at is not None
    assert abs(expires_at - time.time() - 24 * 3600) < 600


def test_teardown_purges(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Row 11: the ordinary teardown of the only VM of a node; both of its snapshots go, others stay."""
    name = unique_name("web")
    host.write(f"fork-vk-default-{name}")
    host.write("debian-12")
    vm = _claimed_pod(host, name)
    kube.delete(pod_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the snapshot being purged")
    wait_for(lambda: not host.has(f"fork-{vm}"), SECONDS, what="the fork baseline being purged")
    assert host.has("debian-12")


def test_late_snapshot_of_a_torn_down_pod(host: VmHost, controller: object, kube: KubeApi, unique_name: Name) -> None:
    """Row 11: the runtime writes a snapshot while the pod is being deleted."""
    name = unique_name("web")
    host.runtime.writes_late = True
    host.create_pod(name)
    kube.delete(pod_path(name))
    wait_for(lambda: host.runtime.snapshots, SECONDS, what="the runtime writing")
    wait_for(lambda: not host.has(f"vk-default-{name}"), SECONDS, what="the late snapshot being purged")


@pytest.mark.parametrize(
    ("with_set", "expected"), [pytest.param(True, "GONE", id="row 12"), pytest.param(False, "UNCLAIMED", id="row 13")]
)
def test_unseen_deletion(
    with_set: bool,
    expected: str,
    host: VmHost,
    controller: ControllerProcess,
    kube: KubeApi,
    unique_name: Name,
) -> None:
    """Rows 12 and 13, F16: the pod, and its set if it has one, are deleted while no controller runs."""
    name = unique_name("web")
    owner = create_set(kube, name) if with_set else None
    vm = _claimed_pod(host, f"{name}-0", owner=owner)
    controller.stop()
    _delete_and_wait(kube, pod_path(f"{name}-0"))
    if with_set:
        _delete_and_wait(kube, set_path(name))
    controller.start()
    _settled_marker(host, kube, unique_name("marker"))
    _wait_state(host, vm, expected)


def test_flag_of_an_unseen_deletion(
    host: VmHost, controller: ControllerProcess, kube: KubeApi, unique_name: Name
) -> None:
    """F16: the flag had travelled with a sync; the deletion itself was missed."""
    name = unique_name("web")
    vm = _claimed_pod(host, name)
    _annotate(kube, pod_path(name), {KEEP: "true"})
    wait_for(lambda: snapshots(host.agent.address)[vm].owner.keep_on_delete, SECONDS, what="the flag arriving")
    controller.kill()
    _delete_and_wait(kube, pod_path(name))
    controller.start()
    _wait_state(host, vm, "RETAINED")


def test_flag_and_delete_in_one_breath(
    host: VmHost, controller: object, kube: KubeApi, unique_name: Name, long_profile: bool
) -> None:
    """F18: the flag is written and the pod deleted with grace period 0 at once, many times; all are kept."""
    names = [unique_name("breath") for _ in range(1000 if long_profile else 100)]
    host.runtime.holds = True
    for name in names:
        host.create_pod(name, grace_seconds=0)
        host.write(f"vk-default-{name}")
    for name in names:
        _annotate(kube, pod_path(name), {KEEP: "true"})
        kube.delete(pod_path(name), gracePeriodSeconds=0)

    def kept() -> bool:
        found = snapshots(host.agent.address)
        return all(
            f"vk-default-{name}" in found and found[f"vk-default-{name}"].HasField("retention") for name in names
        )

    wait_for(kept, 60, what="all of them being kept")
    assert all(host.has(f"vk-default-{name}") for name in names)
