"""A set wakes on the node that kept its snapshot, elsewhere when that cannot be, and never fresh over a snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.audit import AuditLog
from tests.support.metrics import metric
from tests.support.seat_place import SeatPlace, annotation, condition, until
from tests.support.snapshot_calls import state
from tests.support.vm_host import RESTORE, STASH, VmHost, pod_path, set_path

DISCARD = "cocoonset.cocoonstack.io/discard-hibernate-snapshot"
SMALL = {"VK_NODE_CPU": "4"}  # of which the reserve leaves 3.2
NEEDS_TWO = {"agent": {"image": "vm", "resources": {"requests": {"cpu": "2"}}}}


def two_hosts(seats: SeatPlace, unique_name: Callable[[str], str]) -> dict[str, VmHost]:
    """Two hosts of which each has room for one of the sets here."""
    return {host.node: host for host in (seats.add_host(unique_name("host"), SMALL) for _ in range(2))}


def fill(kube: KubeApi, seats: SeatPlace, node: str, name: str) -> None:
    """Take the room for another VM on a node."""
    cluster.create_pod(kube, name, selector={cluster.HOSTNAME: node}, requests={"cpu": "2"})
    seats.sets.append(name.removesuffix("-0"))
    assert cluster.placement(kube, name) == node


def passed_by(kube: KubeApi, node: str, names: Iterator[str]) -> None:
    """Wait until the scheduler knows that nothing can be bound to a node."""

    def is_passed_by() -> bool:
        name = next(names)
        cluster.create_pod(kube, name, selector={cluster.HOSTNAME: node})
        placement = cluster.placement(kube, name)
        cluster.delete_pod(kube, name)
        return placement == ""

    until(is_passed_by, "the scheduler passing the node by")


def woken_elsewhere(seats: SeatPlace, name: str, old: VmHost, life: str) -> Json:
    """Wait until a set runs on another node than the one it slept on, its old copy purged; return its pod."""
    seats.wait_reason(name, "Running")
    pod = seats.pod(name)
    assert pod is not None
    assert pod["spec"]["nodeName"] != old.node
    assert (seats.life(name), seats.restored(name)) == (life, "cold")
    vm = f"vk-default-{name}-0"
    until(lambda: state(old.agent.address, vm) in ("GONE", "PURGING"), "the stale copy being purged")
    until(lambda: not old.has(vm), "its files being gone")
    return pod


@pytest.mark.parametrize("why", ["full", "cordoned"])
def test_a_node_that_cannot_take_it_back_is_passed_by_and_its_copy_purged(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str], why: str
) -> None:
    hosts = two_hosts(seats, unique_name)
    controller = seats.controller()
    name = unique_name("set")
    life = seats.run(name, **NEEDS_TWO)
    node = seats.put_to_sleep(name)
    if why == "full":
        fill(kube, seats, node, f"{unique_name('filler')}-0")
    else:
        kube.merge(f"{cluster.NODES}/{node}", {"spec": {"unschedulable": True}})
        passed_by(kube, node, (unique_name("probe") for _ in itertools.count()))
    seats.wake(name)
    woken_elsewhere(seats, name, hosts[node], life)
    assert metric(controller.http_address, "cocoon_node_seat_release_wake_total", placement="pool") == 1


def test_a_node_that_is_gone_is_passed_by(seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]) -> None:
    hosts = two_hosts(seats, unique_name)
    seats.controller()
    name = unique_name("set")
    life = seats.run(name, **NEEDS_TWO)
    node = seats.put_to_sleep(name)
    path = f"{cluster.NODES}/{node}"
    hosts[node].agent.stop()
    # Sooner the Node would be registered again: its agent was heard from a moment ago.
    until(
        lambda: cluster.condition(kube.get(path), "CocoonAgentReachable").get("status") == "False",
        "its agent being missed",
    )
    kube.discard(path)
    passed_by(kube, node, (unique_name("probe") for _ in itertools.count()))
    seats.wake(name)
    seats.wait_reason(name, "Running")
    assert (seats.life(name), seats.restored(name)) == (life, "cold")
    pod = seats.pod(name)
    assert pod is not None
    assert pod["spec"]["nodeName"] in hosts.keys() - {node}
    assert kube.find(path) is None
    # Back again, it is told that what it keeps is stale.
    hosts[node].agent.start()
    until(lambda: not hosts[node].has(f"vk-default-{name}-0"), "the stale copy being purged")


def test_a_set_of_a_cpu_class_waits_for_a_node_of_it(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    zen = seats.add_host(unique_name("host"), SMALL | {"VK_SNAPSHOT_CPU_CLASS": "zen4"})
    seats.add_host(unique_name("host"), SMALL | {"VK_SNAPSHOT_CPU_CLASS": "icelake"})
    controller = seats.controller()
    name = unique_name("set")
    life = seats.run(name, snapshotCompatibilityClass="zen4", **NEEDS_TWO)
    assert seats.put_to_sleep(name) == zen.node
    filler = f"{unique_name('filler')}-0"
    fill(kube, seats, zen.node, filler)
    seats.wake(name)
    until(lambda: "fits nowhere" in condition(seats.read_set(name)).get("message", ""), "the set telling why it waits")
    until(lambda: "WakeNoCapacity" in cluster.event_reasons(kube, name), "the event about it")
    assert seats.phase(name) == "Waking"
    assert metric(controller.http_address, "cocoon_node_seat_release_unschedulable_total") >= 1
    cluster.delete_pod(kube, filler)
    seats.wait_reason(name, "Running")
    assert (seats.life(name), seats.restored(name)) == (life, "warm")


def test_no_room_anywhere_and_suspended_again_leaves_the_snapshot_where_it_is(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    host = seats.add_host(unique_name("host"), SMALL)
    seats.controller()
    name = unique_name("set")
    life = seats.run(name, **NEEDS_TWO)
    seats.put_to_sleep(name)
    filler = f"{unique_name('filler')}-0"
    fill(kube, seats, host.node, filler)
    seats.wake(name)
    until(lambda: "fits nowhere" in condition(seats.read_set(name)).get("message", ""), "the set telling why it waits")
    seats.suspend(name)
    seats.wait_phase(name, "Suspended")
    until(lambda: seats.pod(name) is None, "the pod that never ran being gone")
    cluster.delete_pod(kube, filler)
    seats.wake(name)
    seats.wait_reason(name, "Running")
    assert (seats.life(name), seats.restored(name)) == (life, "warm")


def test_a_node_named_by_the_set_wins_over_the_one_that_kept_the_snapshot(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    hosts = two_hosts(seats, unique_name)
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    node = seats.put_to_sleep(name)
    (other,) = hosts.keys() - {node}
    kube.merge(set_path(name), {"spec": {"nodeName": other, "suspend": False}})
    pod = woken_elsewhere(seats, name, hosts[node], life)
    assert pod["spec"]["nodeName"] == other


def test_a_lost_snapshot_is_never_booted_over(
    seats: SeatPlace, audit: AuditLog, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    """The registry has lost the snapshot: only a person may give it up, or it is found again."""
    host = seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    seats.put_to_sleep(name)
    vm = f"vk-default-{name}-0"
    lost = seats.registry.find(vm)
    assert lost is not None
    seats.registry.delete(vm)
    since = audit.mark()
    seats.wake(name)
    seats.wait_reason(name, "SnapshotMissing")
    until(lambda: "HibernateSnapshotMissing" in cluster.event_reasons(kube, name), "the event about it")
    assert condition(seats.read_set(name), "HibernateSnapshotMissing")["status"] == "True"
    assert seats.phase(name) == "Waking"
    assert host.has(vm)
    assert audit.writes(since, user=CONTROLLER_USER, verb="create", resource="pods", name=f"{name}-0") == []
    seats.registry.push(vm, lost)
    kube.merge(set_path(name), {"metadata": {"annotations": {"test.example/look": "again"}}})
    woken = seats.wait_reason(name, "Running")
    assert seats.life(name) == life
    assert condition(woken, "HibernateSnapshotMissing")["status"] == "False"


def test_a_person_gives_a_lost_snapshot_up_once(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    seats.put_to_sleep(name)
    seats.registry.delete(f"vk-default-{name}-0")
    seats.wake(name)
    seats.wait_reason(name, "SnapshotMissing")
    kube.merge(set_path(name), {"metadata": {"annotations": {DISCARD: "true"}}})
    woken = seats.wait_reason(name, "Running")
    assert seats.life(name) not in ("", life)
    assert annotation(seats.pod(name), RESTORE) == ""
    assert DISCARD not in woken["metadata"].get("annotations", {})
    assert STASH not in woken["metadata"].get("annotations", {})


def test_a_copy_that_an_agent_holds_hides_no_snapshot(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    host = seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    vm = f"vk-default-{name}-0"
    host.write(vm)
    until(lambda: state(host.agent.address, vm) != "GONE", "the agent knowing the copy")
    seats.create_set(name)
    found = seats.wait_reason(name, "SnapshotMissing")
    assert host.node in condition(found)["message"]
    assert seats.pod(name) is None


def test_a_registry_that_is_down_delays_the_wake(seats: SeatPlace, unique_name: Callable[[str], str]) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    seats.put_to_sleep(name)
    vm = f"vk-default-{name}-0"
    snapshot = seats.registry.find(vm)
    assert snapshot is not None
    seats.registry_process.stop()
    seats.wake(name)
    seats.wait_reason(name, "RegistryUnavailable")
    assert seats.pod(name) is None
    seats.registry_process.start()
    seats.registry.push(vm, snapshot)
    seats.wait_reason(name, "Running")
    assert seats.life(name) == life


def test_the_policy_edited_while_it_sleeps_changes_nothing(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    name = unique_name("set")
    life = seats.run(name)
    seats.put_to_sleep(name)
    kube.merge(set_path(name), {"spec": {"hibernatePolicy": "retain"}})
    seats.wake(name)
    seats.wait_reason(name, "Running")
    assert (seats.life(name), seats.restored(name)) == (life, "warm")


def test_flipped_quickly_it_ends_as_it_was_asked_last_with_the_same_life(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    seats.controller()
    names = [unique_name("set") for _ in range(4)]
    lives = {name: seats.run(name) for name in names}
    for turn in range(12):
        for number, name in enumerate(names):
            seats.suspend(name, suspended=(turn + number) % 2 == 0)
            if number == turn % 4:
                until(lambda name=name: seats.phase(name) != "", "a set having a phase")  # type: ignore[misc]  # bound now
    for name in names:
        seats.suspend(name)
        seats.wait_phase(name, "Suspended")
        seats.wake(name)
    for name in names:
        seats.wait_reason(name, "Running")
        assert seats.life(name) == lives[name]


@pytest.mark.parametrize("phase", ["Running", "Suspending", "Suspended", "Waking"])
def test_a_set_deleted_in_any_phase_leaves_nothing(
    seats: SeatPlace, kube: KubeApi, unique_name: Callable[[str], str], phase: str
) -> None:
    host = seats.add_host(unique_name("host"), SMALL)
    seats.controller()
    name = unique_name("set")
    seats.run(name, **NEEDS_TWO)
    vm = f"vk-default-{name}-0"
    if phase in ("Suspended", "Waking"):
        seats.put_to_sleep(name)
        until(lambda: state(host.agent.address, vm) == "RETAINED", "the copy being kept")
    if phase == "Waking":
        fill(kube, seats, host.node, f"{unique_name('filler')}-0")
        seats.wake(name)
    if phase == "Suspending":
        host.runtime.idle = True
        seats.suspend(name)
    seats.wait_phase(name, phase)
    kube.delete(set_path(name))
    host.runtime.idle = False
    until(lambda: kube.find(pod_path(f"{name}-0")) is None, "the pod going with its set")
    until(lambda: not host.has(vm), "the copy being purged")
