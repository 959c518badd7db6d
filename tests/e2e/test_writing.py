"""What the controller writes to a Node and what it leaves alone, told by the API server's own audit log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.audit import LEASES, AuditLog
from tests.support.metrics import metric
from tests.support.waiting import wait_for

# Figures that other programs on this machine cannot move.
_FIXED = {"VK_NODE_CPU": "4", "VK_NODE_MEM": "8Gi", "VK_NODE_STORAGE": "100Gi", "VK_NODE_HUGEPAGES": "0"}
_CLASS = _FIXED | {"VK_SNAPSHOT_CPU_CLASS": "class-a"}


def _labels(kube: KubeApi, name: str) -> dict[str, str]:
    labels: dict[str, str] = kube.get(f"{cluster.NODES}/{name}")["metadata"]["labels"]
    return labels


def _figures(node: Json) -> tuple[Json, Json, Json]:
    return cluster.labels_of(node), node["status"]["capacity"], node["status"]["allocatable"]


def _reports_taken(controller: ControllerProcess) -> float:
    return metric(controller.http_address, "cocoon_node_agent_reports_total", outcome="taken")


def _restart_noticed(agent: AgentProcess, controller: ControllerProcess) -> None:
    """Restart the agent and wait until the controller has taken the new instance's report."""
    taken = _reports_taken(controller)
    agent.restart()
    wait_for(lambda: _reports_taken(controller) > taken, 30, what="the report after the agent's restart")


def _wait_pool(kube: KubeApi, name: str, pool: str, deadline_seconds: float = 30) -> None:
    wait_for(lambda: _labels(kube, name)[cluster.POOL] == pool, deadline_seconds, what=f"pool {pool} on Node {name}")


def test_a_cleared_class_leaves_the_node_and_nothing_else_is_written(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    other_writer: KubeApi,
    audit: AuditLog,
) -> None:
    """F9, F12: the class is cleared in the settings and the agent restarted; labels of others stay."""
    agent = agent_process(_CLASS)
    controller_process(agent)
    before = cluster.wait_ready(kube, agent.node_name)
    assert before["metadata"]["labels"][cluster.CPU_CLASS] == "class-a"
    other_writer.merge(f"{cluster.NODES}/{agent.node_name}", {"metadata": {"labels": {"somebody": "else"}}})

    mark = audit.mark()
    agent.settings["VK_SNAPSHOT_CPU_CLASS"] = ""
    agent.restart()
    wait_for(lambda: cluster.CPU_CLASS not in _labels(kube, agent.node_name), 30, what="the class label going")

    after = kube.get(f"{cluster.NODES}/{agent.node_name}")
    assert cluster.labels_of(after) == {
        **{key: value for key, value in cluster.labels_of(before).items() if key != cluster.CPU_CLASS},
        "somebody": "else",
    }
    writes = cluster.node_writes(audit, mark, agent.node_name)
    assert [(write.verb, write.subresource, write.status) for write in writes] == [("patch", "", 200)], writes


def test_a_class_cleared_while_the_controller_was_away_goes_too(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    """F9, with the controller restarted in between."""
    agent = agent_process(_CLASS)
    controller = controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)
    wait_for(lambda: _labels(kube, agent.node_name).get(cluster.CPU_CLASS) == "class-a", 10)

    controller.stop()
    agent.settings["VK_SNAPSHOT_CPU_CLASS"] = ""
    agent.restart()
    controller.start()

    wait_for(lambda: cluster.CPU_CLASS not in _labels(kube, agent.node_name), 30, what="the class label going")


def test_a_class_label_that_somebody_else_wrote_too_disappears_when_cleared(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    other_writer: KubeApi,
) -> None:
    """F9: un-applying leaves a key with two owners on the Node; it must go all the same."""
    agent = agent_process(_CLASS)
    controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)
    path = f"{cluster.NODES}/{agent.node_name}"
    shared = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": agent.node_name, "labels": {cluster.CPU_CLASS: "class-a"}},
    }
    other_writer.apply(path, shared, manager="somebody-else", force=False)

    agent.settings["VK_SNAPSHOT_CPU_CLASS"] = ""
    agent.restart()

    wait_for(lambda: cluster.CPU_CLASS not in _labels(kube, agent.node_name), 30, what="the shared label going")


def test_a_restart_with_the_same_settings_sends_no_writing_request(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    audit: AuditLog,
) -> None:
    """F10, for the agent and for the controller; leases, which are renewed on their own, are not counted.

    That a report was acted on cannot be seen from a write that must not happen: the next change is waited for, and what
    was written up to it is that change alone.
    """
    agent = agent_process(_FIXED)
    controller = controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)

    # The registration's event is sent behind its writes.
    wait_for(lambda: "Registered" in cluster.event_reasons(kube, agent.node_name), 30, what="the event")
    mark = audit.mark()
    _restart_noticed(agent, controller)
    controller.stop()
    controller.start()
    wait_for(lambda: _reports_taken(controller) >= 1, 30, what="the new controller hearing from the agent")
    _restart_noticed(agent, controller)
    agent.settings["VK_NODE_POOL"] = "after"
    agent.restart()
    _wait_pool(kube, agent.node_name, "after")

    writes = [write for write in audit.writes(mark, user=CONTROLLER_USER) if write.resource != LEASES]
    told = cluster.event_reasons(kube, agent.node_name)
    assert [(write.verb, write.resource, write.subresource) for write in writes] == [("patch", "nodes", "")], (
        writes,
        told,
    )


def test_a_killed_controller_changes_no_label_and_no_figure(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    audit: AuditLog,
) -> None:
    agent = agent_process(_CLASS)
    controller = controller_process(agent)
    before = cluster.wait_ready(kube, agent.node_name)
    renewed = cluster.wait_lease(kube, agent.node_name)["spec"]["renewTime"]

    mark = audit.mark()
    controller.kill()
    controller.start()

    def renewed_again() -> bool:
        return bool(cluster.wait_lease(kube, agent.node_name)["spec"]["renewTime"] != renewed)

    wait_for(renewed_again, 30, what="the lease renewed again")

    after = kube.get(f"{cluster.NODES}/{agent.node_name}")
    assert _figures(after) == _figures(before)
    # The lease may be renewed before the Node is looked at: the next change shows that it was, and what it led to.
    agent.settings["VK_NODE_POOL"] = "after"
    agent.restart()
    _wait_pool(kube, agent.node_name, "after")
    writes = cluster.node_writes(audit, mark, agent.node_name)
    assert [(write.verb, write.subresource) for write in writes] == [("patch", "")], writes


def test_a_second_manager_is_met_without_a_write_war(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    other_writer: KubeApi,
    audit: AuditLog,
) -> None:
    """F12: a field is taken back once; changed again at once, it is left alone for ten minutes."""
    agent = agent_process(_FIXED | {"VK_NODE_POOL": "ours"})
    controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)
    path = f"{cluster.NODES}/{agent.node_name}"

    def take(pool: str) -> None:
        other_writer.merge(path, {"metadata": {"labels": {cluster.POOL: pool}}}, manager="somebody-else")

    mark = audit.mark()
    take("theirs")
    _wait_pool(kube, agent.node_name, "ours")
    for number in range(20):
        take(f"theirs-{number}")
    # Something of ours that must still be written proves that the controller has seen the Node since.
    other_writer.merge(path, {"metadata": {"labels": {cluster.ROLE: None}}}, manager="somebody-else")
    wait_for(lambda: cluster.ROLE in _labels(kube, agent.node_name), 30, what="another field being taken back")

    assert _labels(kube, agent.node_name)[cluster.POOL] == "theirs-19"
    assert len(cluster.node_writes(audit, mark, agent.node_name)) <= 3


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_field_changed_a_third_time_is_left_to_the_other_writer(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    other_writer: KubeApi,
) -> None:
    """F12, in real time: taken back at once, taken back after ten minutes, then ceded, with condition and event."""
    agent = agent_process(_FIXED | {"VK_NODE_POOL": "ours"})
    controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)
    path = f"{cluster.NODES}/{agent.node_name}"

    for deadline_seconds in (30, 660):
        other_writer.merge(path, {"metadata": {"labels": {cluster.POOL: "theirs"}}}, manager="somebody-else")
        _wait_pool(kube, agent.node_name, "ours", deadline_seconds)
    other_writer.merge(path, {"metadata": {"labels": {cluster.POOL: "theirs"}}}, manager="somebody-else")

    def conflict() -> Json:
        return cluster.condition(kube.get(path), "FieldConflict")

    wait_for(lambda: conflict().get("status") == "True", 60, what="condition FieldConflict")
    assert cluster.POOL in conflict()["message"]
    assert _labels(kube, agent.node_name)[cluster.POOL] == "theirs"
    wait_for(lambda: "FieldConflict" in cluster.event_reasons(kube, agent.node_name), 30, what="the event")
