"""Reports in, Nodes and Leases out, on the real API server with the rights of the shipped RBAC."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.nodes import budget, reconciler
from controller.nodes.model import CONTROLLER, REGISTRATION, ROLE_LABEL, TAINT
from controller.nodes.operator import NodeOperator
from controller.nodes.plan import NodeSettings
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.controller.nodes.building import report, with_class
from tests.controller.nodes.conftest import (
    LEASES,
    NODES,
    OUR_USER,
    QUICK_SECONDS,
    RunningNodes,
    condition,
    events_about,
    find,
    is_ready,
    remove,
    running_nodes,
)
from tests.support.audit import LEASES as LEASE_RESOURCE
from tests.support.audit import AuditLog, Write
from tests.support.waiting import wait_for_async

CPU_CLASS = "cocoonstack.io/snapshot-cpu-class"
AGENT = "192.0.2.10:7443"


def node_writes(audit: AuditLog, since: int, name: str) -> list[Write]:
    """Our writes of this Node, leases and events left out."""
    return [
        write
        for write in audit.writes(since, user=OUR_USER, name=name)
        if write.resource not in (LEASE_RESOURCE, "events")
    ]


async def settled(kube: KubeApi, name: str) -> None:
    await wait_for_async(lambda: is_ready(kube, name), what=f"{name} being Ready")


async def test_a_report_becomes_a_node_and_a_lease(control_plane: ControlPlane, kube: KubeApi, node_name: str) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name, provider_id="cocoon://a"))
        await settled(kube, node_name)
        lease = await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}"), what="the lease")
        assert lease is not None
    node = find(kube, node_name)
    assert node["spec"]["providerID"] == "cocoon://a"
    assert TAINT in node["spec"]["taints"]
    assert node["status"]["capacity"] == dict(report().capacity)
    assert node["status"]["allocatable"] == dict(report().allocatable)
    assert {**report(node_name).labels, "type": "virtual-kubelet"}.items() <= node["metadata"]["labels"].items()
    assert sorted(node["status"]["addresses"], key=str) == [
        {"type": "Hostname", "address": node_name},
        {"type": "InternalIP", "address": "192.0.2.10"},
    ]
    assert node["status"]["nodeInfo"]["machineID"] == f"machine-{node_name}"
    assert all(item["lastHeartbeatTime"] is None for item in node["status"]["conditions"] if item["type"] == "Ready")
    for entry in node["metadata"]["managedFields"]:
        if entry["manager"] == REGISTRATION:
            assert "f:labels" not in entry["fieldsV1"].get("f:metadata", {})
        if entry["manager"] == CONTROLLER:
            assert (entry["operation"], "f:spec" in entry["fieldsV1"]) == ("Apply", False)
    assert lease["spec"]["holderIdentity"] == CONTROLLER
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [node["metadata"]["uid"]]


async def test_the_node_is_not_ready_before_its_labels_are_there(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str
) -> None:
    since = audit.mark()
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
    writes = node_writes(audit, since, node_name)
    assert [(write.verb, write.subresource) for write in writes] == [("create", ""), ("patch", ""), ("patch", "status")]
    assert writes[1].response["metadata"]["labels"]["cocoonstack.io/pool"] == "default"


async def test_an_agent_that_reports_without_end_costs_its_node_a_rhythm(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken agent, or one in other hands; what it says last is written all the same."""
    # Used up but for what a registration takes.
    monkeypatch.setattr(reconciler, "WriteBudget", lambda: budget.WriteBudget(4.0, time.monotonic()))
    pools = [f"pool-{number}" for number in range(60)]
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        since, started = audit.mark(), time.monotonic()
        for revision, pool in enumerate(pools, start=2):
            labels = {**report(node_name).labels, "cocoonstack.io/pool": pool}
            running.reconciler.observe_report(AGENT, report(node_name, revision=revision, labels=labels))
            # Its rhythm, slower than a write, so that each would be written.
            await asyncio.sleep(0.1)
        await wait_for_async(
            lambda: find(kube, node_name)["metadata"]["labels"]["cocoonstack.io/pool"] == pools[-1],
            what="the last report being written",
        )
        seconds = time.monotonic() - started
    assert 0 < len(node_writes(audit, since, node_name)) <= 4 + seconds * budget.PER_SECOND + 5


async def test_restarts_that_change_nothing_write_nothing(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str
) -> None:
    """F10"""
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        since = audit.mark()
        running.reconciler.observe_loss(AGENT, node_name, "ConnectionRefused")
        running.reconciler.observe_report(AGENT, report(node_name, instance_id="instance-2"))
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name, instance_id="instance-3"))
        # A change that must be written comes last in the queue: when it is there, the restart has been dealt with.
        running.reconciler.observe_report(AGENT, report(node_name, instance_id="instance-3", revision=2))
        await wait_for_async(
            lambda: any(view.name == node_name and view.lifecycle == "own" for view in running.reconciler.views()),
            what="the restarted agent's report being dealt with",
        )
    assert node_writes(audit, since, node_name) == []


async def test_a_cleared_class_goes_even_when_somebody_else_wrote_it_too(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str
) -> None:
    """F9"""
    key = "cocoonstack.io/snapshot-cpu-class"
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, with_class(report(node_name), "gold"))
        await settled(kube, node_name)
        theirs = {"metadata": {"name": node_name, "labels": {key: "gold", "team": "blue"}}}
        kube.apply(f"{NODES}/{node_name}", {"apiVersion": "v1", "kind": "Node", **theirs}, manager="somebody")
        since = audit.mark()
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name, instance_id="instance-2"))
        await wait_for_async(lambda: key not in find(kube, node_name)["metadata"]["labels"], what="the class going")
    assert find(kube, node_name)["metadata"]["labels"]["team"] == "blue"
    assert [write.subresource for write in node_writes(audit, since, node_name)] == ["", ""]


async def test_hugepages_come_and_go(control_plane: ControlPlane, kube: KubeApi, node_name: str) -> None:
    """F4"""
    pages = {"hugepages-2Mi": "64Mi"}
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        more = report(
            node_name,
            revision=2,
            capacity={**report().capacity, **pages},
            allocatable={**report().allocatable, "hugepages-2Mi": "53687091"},
        )
        running.reconciler.observe_report(AGENT, more)
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"].get("hugepages-2Mi") == "64Mi")
        running.reconciler.observe_report(AGENT, report(node_name, revision=3))
        await wait_for_async(lambda: "hugepages-2Mi" not in find(kube, node_name)["status"]["capacity"])
    assert "hugepages-2Mi" not in find(kube, node_name)["status"]["allocatable"]


async def test_a_deleted_node_of_a_living_agent_comes_back(
    control_plane: ControlPlane, kube: KubeApi, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        uid = find(kube, node_name)["metadata"]["uid"]
        kube.delete(f"{NODES}/{node_name}")
        await wait_for_async(lambda: is_ready(kube, node_name) and find(kube, node_name)["metadata"]["uid"] != uid)
        await wait_for_async(
            lambda: (
                (kube.find(f"{LEASES}/{node_name}") or {})
                .get("metadata", {})
                .get("ownerReferences", [{}])[0]
                .get("uid")
                == find(kube, node_name)["metadata"]["uid"]
            ),
            what="the lease following the new Node",
        )


@pytest.mark.parametrize("mark", ["manager", "runtime"])
async def test_a_kubelets_node_is_refused_with_an_event(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str, mark: str
) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name, "labels": {ROLE_LABEL: ""}}}
    kube.create(NODES, node, fieldManager="kubelet" if mark == "manager" else "somebody")
    if mark == "runtime":
        info = {"nodeInfo": {"containerRuntimeVersion": "containerd://2.0.0"}}
        kube.merge(f"{NODES}/{node_name}/status", {"status": info}, manager="agent-of-somebody")
    since = audit.mark()
    async with running_nodes(control_plane, NodeSettings(adopt=True)) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        events = await wait_for_async(lambda: events_about(kube, node_name), what="the event")
    assert [event["reason"] for event in events] == ["KubeletNode"]
    assert node_writes(audit, since, node_name) == []
    assert kube.find(f"{LEASES}/{node_name}") is None


async def test_a_virtual_kubelets_node_is_adopted_and_its_life_left_alone(
    control_plane: ControlPlane, kube: KubeApi, node_name: str
) -> None:
    labels = {ROLE_LABEL: "", "type": "virtual-kubelet"}
    kube.create(NODES, {"metadata": {"name": node_name, "labels": labels}}, fieldManager="virtual-kubelet")
    theirs = {"addresses": [{"type": "InternalIP", "address": "198.51.100.7"}], "capacity": {"cpu": "1", "pods": "5"}}
    kube.merge(f"{NODES}/{node_name}/status", {"status": theirs}, manager="virtual-kubelet")
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "32")
    node = find(kube, node_name)
    assert node["status"]["addresses"] == theirs["addresses"]
    assert (
        "annotations" not in node["metadata"] or "cocoonstack.io/registered-by" not in node["metadata"]["annotations"]
    )
    assert condition(kube, node_name, "Ready") in ("", "Unknown")
    assert kube.find(f"{LEASES}/{node_name}") is None


async def test_a_lease_renewed_by_somebody_else_ends_our_keeping_the_node_alive(
    control_plane: ControlPlane, kube: KubeApi, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 0.5)
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}"))
        kube.merge(
            f"{LEASES}/{node_name}", {"spec": {"holderIdentity": "vk", "renewTime": "2030-01-01T00:00:00.000000Z"}}
        )
        await wait_for_async(
            lambda: [view.lifecycle for view in running.reconciler.views() if view.name == node_name] == ["external"]
        )
        before = find(kube, node_name)["status"]
        running.reconciler.observe_report(
            AGENT, report(node_name, revision=2, capacity={**report().capacity, "cpu": "16"})
        )
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "16")
    after = find(kube, node_name)["status"]
    assert after["conditions"] == before["conditions"]
    assert after["addresses"] == before["addresses"]
    assert after["nodeInfo"] == before["nodeInfo"]
    assert kube.get(f"{LEASES}/{node_name}")["spec"]["holderIdentity"] == "vk"
    assert "LifecycleExternal" in {event["reason"] for event in events_about(kube, node_name)}


async def test_a_foreign_lease_from_the_start_is_respected(
    control_plane: ControlPlane, kube: KubeApi, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}"))
    kube.merge(f"{LEASES}/{node_name}", {"spec": {"holderIdentity": "vk"}})
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await wait_for_async(
            lambda: [view.lifecycle for view in running.reconciler.views() if view.name == node_name] == ["external"]
        )
    assert kube.get(f"{LEASES}/{node_name}")["spec"]["holderIdentity"] == "vk"
    async with running_nodes(control_plane, NodeSettings(lifecycle="own")) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await wait_for_async(
            lambda: kube.get(f"{LEASES}/{node_name}")["spec"]["holderIdentity"] == CONTROLLER,
            what="the setting taking the lease back",
        )


async def test_a_writer_of_other_things_causes_no_write(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, other_writer: KubeApi, node_name: str
) -> None:
    """F12"""
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        since = audit.mark()
        for turn in range(40):
            await asyncio.to_thread(
                other_writer.merge,
                f"{NODES}/{node_name}",
                {"metadata": {"annotations": {"turn": str(turn)}, "labels": {"team": f"t{turn}"}}},
            )
        theirs = {"type": "TheirCondition", "status": "True", "reason": "Theirs", "message": ""}
        kube.apply(
            f"{NODES}/{node_name}/status",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name}, "status": {"conditions": [theirs]}},
            manager="somebody",
        )
        running.reconciler.observe_report(
            AGENT, report(node_name, revision=2, capacity={**report().capacity, "cpu": "16"})
        )
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "16")
    node = find(kube, node_name)
    assert node["metadata"]["labels"]["team"] == "t39"
    assert condition(kube, node_name, "TheirCondition") == "True"
    assert len(node_writes(audit, since, node_name)) == 1


async def test_a_writer_of_our_fields_is_met_without_a_war(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, other_writer: KubeApi, node_name: str
) -> None:
    """F12: the rule in full is tried on the model with its hours; here, that the first change is taken back once."""
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        since = audit.mark()
        path = f"{NODES}/{node_name}/status"
        await asyncio.to_thread(other_writer.merge, path, {"status": {"capacity": {"cpu": "99"}}})
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "32", what="the take-back")
        for turn in range(10):
            await asyncio.to_thread(other_writer.merge, path, {"status": {"capacity": {"cpu": str(100 + turn)}}})
        # Something else that must be written shows that the changes before it have been looked at.
        running.reconciler.observe_report(
            AGENT, report(node_name, revision=2, capacity={**report().capacity, "pods": "99"})
        )
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["pods"] == "99")
    assert find(kube, node_name)["status"]["capacity"]["cpu"] == "109"
    assert len(node_writes(audit, since, node_name)) == 2


@pytest.mark.usefixtures("quick_silence")
async def test_silence_is_said_and_takes_nothing_away(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, with_class(report(node_name), "gold"))
        await settled(kube, node_name)
        before = find(kube, node_name)
        since = audit.mark()
        running.reconciler.observe_loss(AGENT, node_name, "ConnectionRefused")
        await wait_for_async(lambda: condition(kube, node_name, "CocoonAgentReachable") == "False")
        after = find(kube, node_name)
        assert before["metadata"]["labels"].items() <= after["metadata"]["labels"].items()
        for part in ("capacity", "allocatable", "addresses", "nodeInfo"):
            assert after["status"][part] == before["status"][part]
        assert is_ready(kube, node_name)
        assert len(node_writes(audit, since, node_name)) == 1
        running.reconciler.observe_report(AGENT, with_class(report(node_name), "gold"))
        await wait_for_async(lambda: condition(kube, node_name, "CocoonAgentReachable") == "True")


@pytest.mark.usefixtures("quick_silence")
async def test_agents_that_do_not_answer_at_the_start_keep_their_nodes(
    control_plane: ControlPlane, kube: KubeApi, unique_name: Callable[[str], str], node_name: str
) -> None:
    """F11: one agent configured and silent, one not even configured."""
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, with_class(report(node_name), "gold"))
        await settled(kube, node_name)
        before = find(kube, node_name)
    for expected in (True, False):
        async with running_nodes(control_plane) as running:
            if expected:
                running.reconciler.expect_agent(AGENT, node_name)
            await wait_for_async(lambda: condition(kube, node_name, "CocoonAgentReachable") == "False")
            running.reconciler.observe_report(AGENT, with_class(report(node_name), "gold"))
            await wait_for_async(lambda: condition(kube, node_name, "CocoonAgentReachable") == "True")
        after = find(kube, node_name)
        assert before["metadata"]["labels"].items() <= after["metadata"]["labels"].items()
        assert after["status"]["capacity"] == before["status"]["capacity"]


async def test_another_machine_waits_for_acceptance(
    control_plane: ControlPlane, kube: KubeApi, audit: AuditLog, operator: NodeOperator, node_name: str
) -> None:
    """F34: a host is reinstalled."""
    new = report(node_name, instance_id="new", host=replace(report().host, machine_id="machine-new"))
    new = replace(new, capacity={**report().capacity, "cpu": "8"})
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        running.reconciler.forget_agent(AGENT, node_name)
        since = audit.mark()
        running.reconciler.observe_report("192.0.2.11:7443", new)
        await wait_for_async(lambda: "MachineChanged" in {event["reason"] for event in events_about(kube, node_name)})
        assert node_writes(audit, since, node_name) == []
        done = await operator.accept(node_name, "machine-new")
        assert len(done.sent) == 1
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "8")
    assert find(kube, node_name)["status"]["nodeInfo"]["machineID"] == "machine-new"
    assert (await operator.accept(node_name, "machine-new")).sent == ()


async def test_a_second_agent_of_the_name_is_refused(
    control_plane: ControlPlane, kube: KubeApi, node_name: str
) -> None:
    """F34: two agents report the same node name."""
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        second = report(node_name, instance_id="other", capacity={**report().capacity, "cpu": "8"})
        running.reconciler.observe_report("192.0.2.66:7443", second)
        await wait_for_async(lambda: "SecondAgent" in {event["reason"] for event in events_about(kube, node_name)})
        assert find(kube, node_name)["status"]["capacity"]["cpu"] == "32"
        running.reconciler.forget_agent(AGENT, node_name)
        await wait_for_async(lambda: find(kube, node_name)["status"]["capacity"]["cpu"] == "8")


@pytest.mark.usefixtures("quick_silence")
async def test_the_lifecycle_controller_marks_a_silent_node_and_a_returning_one_is_ready_again(
    control_plane: ControlPlane, kube: KubeApi, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 1.0)
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report(AGENT, report(node_name))
        await settled(kube, node_name)
        await wait_for_async(
            lambda: condition(kube, node_name, "Ready") == "Unknown", 60, what="the lifecycle controller giving up"
        )
        assert find(kube, node_name)["status"]["capacity"] == dict(report().capacity)
        running.reconciler.observe_report(AGENT, report(node_name))
        await wait_for_async(lambda: is_ready(kube, node_name), 15, what="Ready within 15 s")


@pytest.mark.parametrize("led_before", [False, True], ids=["follower", "leader again"])
async def test_who_takes_over_calls_nobody_silent_before_having_listened(
    control_plane: ControlPlane,
    kube: KubeApi,
    audit: AuditLog,
    node_name: str,
    unique_name: Callable[[str], str],
    quick_silence: None,
    led_before: bool,
) -> None:
    """F11: a follower knows every Node and has heard no agent; that says nothing about the agents."""
    other = unique_name("other")
    try:
        async with running_nodes(control_plane) as first:
            first.reconciler.observe_report(AGENT, report(node_name))
            await settled(kube, node_name)
            if led_before:
                await first.lose_leadership()
                await _takes_over(first, kube, audit, node_name, other)
        if not led_before:
            async with running_nodes(control_plane, leads=False) as second:
                await _takes_over(second, kube, audit, node_name, other)
    finally:
        remove(kube, other)


async def _takes_over(running: RunningNodes, kube: KubeApi, audit: AuditLog, name: str, other: str) -> None:
    """Let the running part lead after it has followed for longer than agents may be silent."""
    follows_since = time.monotonic()
    await wait_for_async(lambda: time.monotonic() - follows_since > 2 * QUICK_SECONDS, what="following for a while")
    since = audit.mark()
    running.lead()
    # The agent answers a little late: others have their turn first, and with them the Node of which nothing is heard.
    running.reconciler.observe_report("192.0.2.11:7443", report(other))
    await settled(kube, other)
    running.reconciler.observe_report(AGENT, with_class(report(name), "zen4"))
    await wait_for_async(lambda: CPU_CLASS in find(kube, name)["metadata"]["labels"], what="the new class")
    told = [
        item["status"]
        for write in node_writes(audit, since, name)
        for item in (write.request or {}).get("status", {}).get("conditions", ())
        if item["type"] == "CocoonAgentReachable"
    ]
    assert "False" not in told
    assert condition(kube, name, "CocoonAgentReachable") == "True"
