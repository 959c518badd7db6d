"""Accept, forget and prune: as plans, and on the real API server."""

from dataclasses import replace

import pytest

from controller.nodes.model import ACCEPTED_MACHINE, CONTROLLER, REGISTERED_BY, REGISTRATION, LiveNode
from controller.nodes.operations import ForgetFacts, Operation, accept, forget, prune
from controller.nodes.operator import NodeOperator
from controller.nodes.plan import NodeSettings
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.controller.nodes.building import our_node, owner, report, with_class
from tests.controller.nodes.conftest import LEASES, NODES, find, is_ready, running_nodes
from tests.support.waiting import wait_for_async

KUBELETS = LiveNode("host-1", owners=(owner("kubelet", "capacity:cpu"),))
WITH_MACHINE = our_node(node_info={"machineID": "m1"})


@pytest.mark.parametrize(
    ("live", "machine", "refusal"),
    [(None, "m2", "NoNode"), (KUBELETS, "m2", "KubeletNode"), (WITH_MACHINE, "", "NoMachineID")],
)
def test_accept_is_refused(live: LiveNode | None, machine: str, refusal: str) -> None:
    operation = accept("host-1", live, machine)
    assert (operation.refusal, operation.steps) == (refusal, ())
    assert "host-1" in operation.explanation


def test_accept_writes_one_annotation_and_only_when_needed() -> None:
    (step,) = accept("host-1", WITH_MACHINE, "m2").steps
    assert step.body == {"metadata": {"resourceVersion": "7", "annotations": {ACCEPTED_MACHINE: "m2"}}}
    assert accept("host-1", WITH_MACHINE, "m1") == Operation("host-1")
    accepted = replace(WITH_MACHINE, annotations={**WITH_MACHINE.annotations, ACCEPTED_MACHINE: "m2"})
    assert accept("host-1", accepted, "m2") == Operation("host-1")
    assert accept("host-1", accepted, "m1").steps


@pytest.mark.parametrize(
    ("live", "answers", "refusal", "paths"),
    [
        (our_node(), True, "AgentAnswers", []),
        (KUBELETS, False, "KubeletNode", []),
        (LiveNode("host-1"), False, "NotOurs", []),
        (our_node(), False, "", [f"{NODES}/host-1", f"{LEASES}/host-1"]),
        (None, False, "", [f"{LEASES}/host-1"]),
    ],
)
def test_forget(live: LiveNode | None, answers: bool, refusal: str, paths: list[str]) -> None:
    operation = forget(ForgetFacts("host-1", live, has_lease=True, agent_answers=answers))
    assert (operation.refusal, [step.path for step in operation.steps]) == (refusal, paths)


def test_prune_has_nothing_to_do_where_we_never_wrote() -> None:
    for live in (None, KUBELETS, LiveNode("host-1", owners=(owner("somebody", "label:team"),))):
        assert prune("host-1", live).steps == ()


async def test_prune_takes_ours_off_and_leaves_values_and_what_is_others(
    control_plane: ControlPlane, kube: KubeApi, operator: NodeOperator, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report("a", with_class(report(node_name, provider_id="cocoon://a"), "gold"))
        await wait_for_async(lambda: is_ready(kube, node_name))
    theirs = {"metadata": {"labels": {"team": "blue"}, "annotations": {"note": "theirs"}}}
    kube.merge(f"{NODES}/{node_name}", theirs, manager="somebody")
    before = find(kube, node_name)
    assert node_name in await operator.written_nodes()

    done = await operator.prune(node_name)

    assert [step.verb for step in done.sent] == ["merge-patch", "json-patch", "json-patch"]
    after = find(kube, node_name)
    labels = after["metadata"]["labels"]
    assert labels["team"] == "blue"
    assert not [key for key in labels if "cocoon" in key or key == "type"]
    assert after["metadata"]["annotations"].get("note") == "theirs"
    assert REGISTERED_BY not in after["metadata"]["annotations"]
    assert not {entry["manager"] for entry in after["metadata"]["managedFields"]} & {CONTROLLER, REGISTRATION}
    assert not [item for item in after["status"]["conditions"] if item["type"].startswith("Cocoon")]
    for part in ("capacity", "allocatable", "addresses", "nodeInfo"):
        assert after["status"][part] == before["status"][part]
    assert after["spec"]["providerID"] == "cocoon://a"
    assert (await operator.prune(node_name)).sent == ()
    assert node_name not in await operator.written_nodes()


async def test_a_running_controller_does_not_put_pruned_things_back(
    control_plane: ControlPlane, kube: KubeApi, operator: NodeOperator, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report("a", report(node_name))
        await wait_for_async(lambda: is_ready(kube, node_name))
        await operator.prune(node_name)
        await wait_for_async(
            lambda: [view.refusal for view in running.reconciler.views() if view.name == node_name] == ["NotAdopted"]
        )
    assert "cocoonstack.io/pool" not in find(kube, node_name)["metadata"].get("labels", {})


async def test_forget_removes_node_and_lease(
    control_plane: ControlPlane, kube: KubeApi, operator: NodeOperator, node_name: str
) -> None:
    async with running_nodes(control_plane) as running:
        running.reconciler.observe_report("a", report(node_name))
        await wait_for_async(lambda: is_ready(kube, node_name) and kube.find(f"{LEASES}/{node_name}"))
    refused = await operator.forget(node_name, agent_answers=True)
    assert (refused.operation.refusal, refused.sent) == ("AgentAnswers", ())
    await operator.forget(node_name, agent_answers=False)
    assert not find(kube, node_name)
    await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}") is None)
    again = await operator.forget(node_name, agent_answers=False)
    assert (again.operation.steps, again.sent) == ((), ())


async def test_prune_leaves_a_condition_that_nobody_owns(
    control_plane: ControlPlane, kube: KubeApi, operator: NodeOperator, node_name: str
) -> None:
    """Written together with the Node, as a virtual kubelet does, it has no owner in the managed fields."""
    ready = {"type": "Ready", "status": "True", "reason": "Theirs"}
    labels = {"node-role.kubernetes.io/cocoon-vm": "", "type": "virtual-kubelet"}
    body = {"metadata": {"name": node_name, "labels": labels}, "status": {"conditions": [ready]}}
    kube.create(NODES, body, fieldManager="virtual-kubelet")
    async with running_nodes(control_plane, NodeSettings(lifecycle="external")) as running:
        running.reconciler.observe_report("a", report(node_name))
        await wait_for_async(lambda: len(find(kube, node_name)["status"]["conditions"]) > 1)

    await operator.prune(node_name)

    conditions = find(kube, node_name)["status"]["conditions"]
    assert [(each["type"], each["reason"]) for each in conditions] == [("Ready", "Theirs")]
