"""Whose Node it is: a kubelet's stays untouched, a virtual kubelet's keeps its life, a silent agent's is marked."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.audit import AuditLog
from tests.support.waiting import wait_for


@pytest.fixture
def foreign_node(kube: KubeApi, unique_name: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """A function that registers a Node as somebody else; removed afterwards, lease included."""
    names: list[str] = []

    def register(labels: dict[str, str], node_info: dict[str, str], *, manager: str) -> str:
        name = unique_name("foreign")
        names.append(name)
        metadata = {"name": name, "labels": labels}
        kube.create(cluster.NODES, {"metadata": metadata}, fieldManager=manager)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "reason": "Theirs", "lastHeartbeatTime": now}
        status = {"conditions": [ready], "capacity": {"cpu": "1", "pods": "1"}}
        kube.merge(f"{cluster.NODES}/{name}/status", {"status": status}, manager=manager)
        if node_info:
            live = kube.get(f"{cluster.NODES}/{name}")
            live["status"]["nodeInfo"] = live["status"]["nodeInfo"] | node_info
            kube.replace(f"{cluster.NODES}/{name}/status", live, fieldManager=manager)
        return name

    yield register
    for name in names:
        for path in (f"{cluster.NODES}/{name}", f"{cluster.LEASES}/{name}"):
            kube.discard(path)


@pytest.mark.parametrize(
    ("node_info", "manager"),
    [
        pytest.param({"containerRuntimeVersion": "containerd://2.1"}, "somebody", id="container-runtime"),
        pytest.param({}, "kubelet", id="written-by-kubelet"),
    ],
)
def test_a_kubelets_node_is_refused_with_an_event_and_never_written(
    node_info: dict[str, str],
    manager: str,
    foreign_node: Callable[..., str],
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    audit: AuditLog,
) -> None:
    name = foreign_node({cluster.ROLE: ""}, node_info, manager=manager)
    agent = agent_process(node_name=name)
    mark = audit.mark()
    controller_process(agent, settings={"COCOON_NODE_CONTROLLER_ADOPT_NODES": "true"})

    wait_for(lambda: "KubeletNode" in cluster.event_reasons(kube, name), 30, what="an event about the refused Node")

    assert cluster.node_writes(audit, mark, name) == []
    assert kube.find(f"{cluster.LEASES}/{name}") is None


def test_a_virtual_kubelets_node_gets_figures_and_labels_and_keeps_its_life(
    foreign_node: Callable[..., str],
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    name = foreign_node({cluster.ROLE: "", "type": "virtual-kubelet"}, {}, manager="virtual-kubelet")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    lease_spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}
    kube.create(cluster.LEASES, {"metadata": {"name": name}, "spec": lease_spec})
    agent = agent_process({"VK_NODE_CPU": "8", "VK_NODE_POOL": "adopted"}, node_name=name)
    controller_process(agent)

    def adopted() -> Json | None:
        node = kube.get(f"{cluster.NODES}/{name}")
        done = node["status"].get("allocatable", {}).get("cpu") == "6"
        return node if done and node["metadata"]["labels"].get(cluster.POOL) == "adopted" else None

    node = wait_for(adopted, 30, what="the Node being adopted")
    assert node is not None
    assert node["status"]["capacity"]["cpu"] == "8"
    assert cluster.condition(node, "Ready")["reason"] == "Theirs"
    assert "addresses" not in node["status"]
    assert "cocoonstack.io/registered-by" not in node["metadata"].get("annotations", {})
    assert kube.get(f"{cluster.LEASES}/{name}")["spec"]["holderIdentity"] == name


@pytest.mark.timeout(240)
def test_a_stopped_agents_node_is_marked_by_the_cluster_and_comes_back_quickly(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    """The lease runs out because nobody is heard from; the cluster's lifecycle controller draws the conclusion."""
    agent = agent_process({"VK_NODE_CPU": "4"})
    controller_process(agent)
    before = cluster.wait_ready(kube, agent.node_name)

    agent.stop()

    def marked() -> Json | None:
        node = kube.get(f"{cluster.NODES}/{agent.node_name}")
        return node if cluster.condition(node, "Ready")["status"] == "Unknown" else None

    node = wait_for(marked, 120, what="the node lifecycle controller marking the Node")
    assert node is not None
    assert cluster.condition(node, "CocoonAgentReachable")["status"] == "False"
    assert node["status"]["capacity"] == before["status"]["capacity"]
    assert node["status"]["allocatable"] == before["status"]["allocatable"]
    assert cluster.labels_of(node) == cluster.labels_of(before)

    agent.start()
    # What users were promised; it is counted from the agent serving again.
    cluster.wait_ready(kube, agent.node_name, deadline_seconds=15)
