"""A suspended set gives its seat back when its snapshot is safe, not before, and whatever becomes of the flag."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import Json, KubeApi
from devenv.snapshot_registry import PushedSnapshot
from tests.support import cluster
from tests.support.audit import AuditLog, Write
from tests.support.metrics import metric, metrics_page
from tests.support.seat_place import SeatPlace, annotation, condition, until
from tests.support.seat_trouble import flag_hangs, flag_refused
from tests.support.snapshot_calls import retention, snapshots, state
from tests.support.vm_host import KEEP, SETS_API, STASH, pod_path

HIBERNATE = "vm.cocoonstack.io/hibernate"


def deletes(audit: AuditLog, since: int, pod: str) -> list[Write]:
    """The controller's deletes of a pod."""
    return audit.writes(since, user=CONTROLLER_USER, verb="delete", resource="pods", name=pod)


def test_a_suspended_vm_gives_its_seat_back_and_wakes_warm(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    hosts = {host.node: host for host in (seats.add_host(unique_name("host")) for _ in range(2))}
    seats.controller()
    name = unique_name("set")
    life, since = seats.run(name), audit.mark()
    node = seats.put_to_sleep(name)
    vm = f"vk-default-{name}-0"
    assert seats.registry.find(vm) is not None
    until(lambda: retention(hosts[node].agent.address, vm)[0] == "SEAT_RELEASE", "the copy being kept")
    until(lambda: snapshots(hosts[node].agent.address)[vm].retention.backup_verified, "its backup being known")
    writes = audit.writes(since, user=CONTROLLER_USER)
    about = [each for each in writes if name in each.name and each.resource in ("pods", "cocoonsets")]
    kinds = [(each.verb, each.resource, each.subresource) for each in about]
    assert kinds == [
        ("patch", "cocoonsets", "status"),
        ("patch", "pods", ""),
        ("patch", "cocoonsets", ""),
        ("patch", "pods", ""),
        ("delete", "pods", ""),
        ("patch", "cocoonsets", "status"),
    ]
    seats.wake(name)
    woken = seats.wait_reason(name, "Running")
    pod = seats.pod(name)
    assert pod is not None
    assert (seats.life(name), seats.restored(name), pod["spec"]["nodeName"]) == (life, "warm", node)
    assert STASH not in woken["metadata"].get("annotations", {})
    assert seats.registry.find(vm) is None


def test_the_flag_is_in_the_api_when_the_delete_arrives(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    seats.run(name)
    uid, since = seats.pod(name)["metadata"]["uid"], audit.mark()  # type: ignore[index]  # it runs
    seats.put_to_sleep(name)
    (delete,) = deletes(audit, since, f"{name}-0")
    # What the API server answers to a delete is the object it had, not one that anybody sent.
    assert annotation(delete.response, KEEP) == "true"
    assert delete.request["preconditions"]["uid"] == uid
    writes = audit.writes(since, user=CONTROLLER_USER)
    order = [f"{each.verb} {each.resource}" for each in writes if each.name in (name, f"{name}-0")]
    stash = next(number for number, each in enumerate(writes) if STASH in str(each.request))
    flag = next(number for number, each in enumerate(writes) if KEEP in str(each.request))
    gone = next(number for number, each in enumerate(writes) if each.verb == "delete")
    assert stash < flag < gone, order
    assert writes[flag].request["metadata"]["uid"] == uid
    assert [each for each in writes[flag + 1 : gone] if each.resource == "pods"] == []


@pytest.mark.parametrize("trouble", [flag_refused, flag_hangs], ids=["refused for ever", "webhook hangs"])
def test_the_seat_is_freed_when_the_flag_is_refused(
    seats: SeatPlace,
    audit: AuditLog,
    kube: KubeApi,
    unique_name: Callable[[str], str],
    trouble: Callable[[KubeApi, str], contextlib.AbstractContextManager[None]],
) -> None:
    seats.add_host(unique_name("host"))
    controller = seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    since = audit.mark()
    with trouble(kube, name):
        seats.put_to_sleep(name)
    assert len(deletes(audit, since, f"{name}-0")) == 1
    assert metric(controller.http_address, "cocoon_node_seat_release_flag_failures_total") == 1
    assert metric(controller.http_address, "cocoon_node_seat_release_pods_deleted_total") == 1
    log = controller.process.log_path.read_text()
    told = [line for line in log.splitlines() if "the keep flag could not be written" in line]
    assert len(told) == 1
    assert " error " in told[0]
    until(lambda: "KeepFlagFailed" in cluster.event_reasons(kube, name), "the event about the flag")
    seats.wake(name)
    seats.wait_reason(name, "Running")
    assert seats.life(name) == life


def stopped_runtime(seats: SeatPlace, name: str) -> Json:
    """Have the runtime do nothing more, and the set be told to hibernate; return the pod."""
    seats.hosts[0].runtime.idle = True
    seats.suspend(name)
    until(lambda: annotation(seats.pod(name), HIBERNATE) == "true", "the pod being told to hibernate")
    pod = seats.pod(name)
    assert pod is not None
    return pod


def say(seats: SeatPlace, name: str, state: str, generation: int) -> None:
    """Say something about a VM in the runtime's place."""
    said = {
        "vm.cocoonstack.io/lifecycle-state": state,
        "vm.cocoonstack.io/lifecycle-observed-generation": str(generation),
    }
    seats.kube.merge(pod_path(f"{name}-0"), {"metadata": {"annotations": said}}, manager="test-runtime")


def waits_for(seats: SeatPlace, name: str, words: str) -> None:
    """Wait until the set says that it waits for this; its pod is there still."""
    until(lambda: words in condition(seats.read_set(name)).get("message", ""), f"the set waiting for: {words}")
    assert "deletionTimestamp" not in seats.pod(name)["metadata"]  # type: ignore[index]  # it is there


def test_the_gate_waits_for_all_three_parts(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    """A stale tag of an earlier suspend, an older generation, a registry that is down, a manifest that is missing."""
    seats.add_host(unique_name("host"))
    seats.controller()
    name, since = unique_name("set"), audit.mark()
    seats.run(name)
    vm, snapshot = f"vk-default-{name}-0", PushedSnapshot("stale", "stale")
    seats.registry.push(vm, snapshot)
    pod = stopped_runtime(seats, name)
    generation = int(annotation(pod, "cocoonset.cocoonstack.io/generation"))
    say(seats, name, "hibernating", generation)
    say(seats, name, "hibernated", generation - 1)
    waits_for(seats, name, f"for generation {generation - 1}, not {generation}")
    seats.registry.delete(vm)
    say(seats, name, "hibernated", generation)
    waits_for(seats, name, "the registry has none")
    seats.registry_process.stop()
    waits_for(seats, name, "the registry does not say")
    assert deletes(audit, since, f"{name}-0") == []
    seats.registry_process.start()
    waits_for(seats, name, "the registry has none")
    seats.registry.push(vm, snapshot)
    seats.wait_phase(name, "Suspended")
    assert len(deletes(audit, since, f"{name}-0")) == 1


def test_a_spec_that_changes_while_suspending_has_to_be_seen_by_the_runtime(
    seats: SeatPlace, unique_name: Callable[[str], str]
) -> None:
    host = seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    seats.run(name)
    stopped_runtime(seats, name)
    seats.kube.merge(f"{SETS_API}/namespaces/default/cocoonsets/{name}", {"spec": {"snapshotPolicy": "main-only"}})
    generation = seats.read_set(name)["metadata"]["generation"]
    key = "cocoonset.cocoonstack.io/generation"
    until(lambda: annotation(seats.pod(name), key) == str(generation), "the pod having the new generation")
    host.runtime.idle = False
    seats.wait_phase(name, "Suspended")


def test_a_terminal_pod_neither_holds_the_gate_nor_is_deleted(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    host = seats.add_host(unique_name("host"))
    seats.controller()
    name, since = unique_name("set"), audit.mark()
    seats.run(name)
    host.runtime.idle = True
    seats.kube.merge(f"{pod_path(f'{name}-0')}/status", {"status": {"phase": "Failed"}})
    seats.wait_phase(name, "Failed")
    seats.suspend(name)
    found = seats.wait_phase(name, "Suspended")
    assert STASH not in found["metadata"].get("annotations", {})
    assert seats.pod(name) is not None
    seats.wake(name)
    seats.wait_phase(name, "Failed")
    assert deletes(audit, since, f"{name}-0") == []


def test_a_pod_that_a_hibernation_targets_is_left_to_it(
    seats: SeatPlace, audit: AuditLog, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name, since = unique_name("set"), audit.mark()
    seats.run(name)
    collection = f"{SETS_API}/namespaces/default/cocoonhibernations"
    kube.create(
        collection,
        {
            "apiVersion": "cocoonset.cocoonstack.io/v1",
            "kind": "CocoonHibernation",
            "metadata": {"name": name},
            "spec": {"desire": "Hibernate", "podRef": {"name": f"{name}-0"}},
        },
    )
    seats.suspend(name)
    waits_for(seats, name, "a CocoonHibernation object targets pod")
    assert annotation(seats.pod(name), HIBERNATE) == ""
    kube.delete(f"{collection}/{name}")
    seats.wait_phase(name, "Suspended")
    assert len(deletes(audit, since, f"{name}-0")) == 1


def test_without_a_registry_it_is_an_error_on_the_set(
    seats: SeatPlace, audit: AuditLog, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    controller = seats.controller()
    name = unique_name("set")
    seats.run(name)
    controller.stop()
    controller.settings.pop("COCOON_NODE_CONTROLLER_REGISTRY")
    controller.start()
    since = audit.mark()
    seats.suspend(name)
    seats.wait_reason(name, "RegistryNotConfigured")
    until(lambda: "SeatReleaseFailed" in cluster.event_reasons(kube, name), "the event about it")
    assert audit.writes(since, user=CONTROLLER_USER, resource="pods", name=f"{name}-0") == []


def test_a_set_suspended_before_it_ran_is_suspended_at_once_and_boots_later(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name, since = unique_name("set"), audit.mark()
    seats.create_set(name, suspend=True)
    seats.wait_phase(name, "Suspended")
    assert audit.writes(since, user=CONTROLLER_USER, resource="pods") == []
    seats.wake(name)
    seats.wait_phase(name, "Running")
    assert seats.restored(name) == ""
    assert seats.life(name)


def test_sets_that_do_not_release_are_left_alone(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    keeps, marker, since = unique_name("set"), unique_name("set"), audit.mark()
    seats.create_set(keeps, suspend=True, hibernatePolicy="retain")
    seats.create_set(marker, suspend=True)
    seats.wait_phase(marker, "Suspended")
    assert audit.writes(since, user=CONTROLLER_USER, resource="cocoonsets", name=keeps) == []


def test_nothing_is_done_without_the_setting(
    seats: SeatPlace, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    controller = seats.controller({"COCOON_NODE_CONTROLLER_SEAT_RELEASE": "false"})
    name, since = unique_name("set"), audit.mark()
    seats.create_set(name, suspend=True)
    assert metrics_page(controller.http_address)
    assert audit.writes(since, user=CONTROLLER_USER, resource="cocoonsets") == []


@pytest.mark.parametrize("is_pushed", [True, False], ids=["in the registry", "not there"])
def test_a_promise_says_whether_a_backup_is_seen_without_seat_release_too(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str], is_pushed: bool
) -> None:
    host = seats.add_host(unique_name("host"))
    seats.controller({"COCOON_NODE_CONTROLLER_SEAT_RELEASE": "false"})
    name = unique_name("pod")
    vm = f"vk-default-{name}"
    host.create_pod(name, grace_seconds=0)
    host.write(vm)
    if is_pushed:
        seats.registry.push(vm, PushedSnapshot(host.snapshot_id(vm), "life"))
    until(lambda: state(host.agent.address, vm) == "IN_USE", "the pod's claim being known")
    kube.merge(pod_path(name), {"metadata": {"annotations": {KEEP: "true"}}})
    kube.delete(pod_path(name), gracePeriodSeconds=0)
    until(lambda: state(host.agent.address, vm) == "RETAINED", "the copy being kept")
    if is_pushed:
        until(lambda: snapshots(host.agent.address)[vm].retention.backup_verified, "its backup being known")
    assert snapshots(host.agent.address)[vm].retention.backup_verified is is_pushed
