"""Migration, rehearsed by the steps of docs/migration.md: from a virtual kubelet that publishes its figures itself to
this system and back, while every version of the Node is watched for a label or a number that is missing or wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.controller_command import run_command
from tests.support.node_versions import NodeVersions
from tests.support.virtual_kubelet import LAST_METADATA, LAST_STATUS, VirtualKubelet
from tests.support.waiting import wait_for

# What the host's env file says, so that both publish the same.
_SETTINGS = {
    "VK_NODE_CPU": "32",
    "VK_NODE_MEM": "64Gi",
    "VK_NODE_STORAGE": "1Ti",
    "VK_NODE_HUGEPAGES": "8Gi",
    "VK_NODE_POOL": "fast",
    "VK_SNAPSHOT_CPU_CLASS": "a",
}
_CAPACITY = {
    "cpu": "32",
    "memory": "64Gi",
    "ephemeral-storage": "1Ti",
    "hugepages-2Mi": "8Gi",
    "pods": "256",
}
_ALLOCATABLE = {
    "cpu": "25",
    "memory": "54975581388",
    "ephemeral-storage": "879609302220",
    "hugepages-2Mi": "6871947673",
    "pods": "256",
}
_OURS = "cocoonstack.io/registered-by"
Hosts = Callable[..., AgentProcess]
Controllers = Callable[..., ControllerProcess]


@pytest.fixture
def kubelet(
    control_plane: ControlPlane, kube: KubeApi, controller_process: Controllers, unique_name: Callable[[str], str]
) -> Iterator[VirtualKubelet]:
    """A virtual kubelet whose Node has been published by itself for a while; it ends before the Node is removed."""
    name = unique_name("migrating")
    labels = {
        cluster.POOL: "fast",
        cluster.CPU_CLASS: "a",
        cluster.ROLE: "",
        cluster.HOSTNAME: name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "virtual-kubelet",
    }
    with control_plane.client("other") as client:
        virtual = VirtualKubelet(client, name, labels, _CAPACITY, _ALLOCATABLE)
        virtual.start(publishes=True)
        cluster.wait_ready(kube, name)
        yield virtual
        virtual.stop()
    for path in (cluster.NODES, cluster.LEASES):
        kube.discard(f"{path}/{name}")


@pytest.fixture
def versions(control_plane: ControlPlane, kubelet: VirtualKubelet) -> Iterator[NodeVersions]:
    """Every version of the Node from here on."""
    with control_plane.client() as client:
        collected = NodeVersions(client, kubelet.name)
        collected.begin()
        yield collected


@pytest.mark.timeout(240)
def test_the_figures_move_and_come_back(
    kubelet: VirtualKubelet,
    versions: NodeVersions,
    agent_process: Hosts,
    controller_process: Controllers,
    control_plane: ControlPlane,
    kube: KubeApi,
) -> None:
    """Lifecycle external: Lease, Ready and addresses stay the virtual kubelet's throughout."""
    agent = agent_process(_SETTINGS, node_name=kubelet.name)
    controller = controller_process(agent, settings={"COCOON_NODE_LIFECYCLE": "external"})
    _wait_condition(kube, kubelet.name, "CocoonAgentReachable")
    _hand_over(kubelet, kube)

    # The Node follows the agent now, which changes one label on the way; the virtual kubelet is told before it is back.
    agent.settings["VK_SNAPSHOT_CPU_CLASS"] = "b"
    agent.restart()
    wait_for(lambda: _labels(kube, kubelet.name).get(cluster.CPU_CLASS) == "b", 30, what="the class being changed")
    _publish_again(kubelet, kube, class_label="b")
    controller.stop()
    run_command(control_plane.kubeconfig(), [agent], "prune", kubelet.name)

    seen = versions.end(kube)
    _assert_never_missing(seen, kubelet, classes=["a", "b"])
    reasons = [cluster.condition(each, "Ready").get("reason") for each in seen]
    assert set(reasons) == {"KubeletReady"}
    assert {_address(each) for each in seen} == {"192.0.2.10"}
    assert _traces(seen[-1]) == set()


@pytest.mark.timeout(300)
def test_the_nodes_life_moves_too_and_comes_back(
    kubelet: VirtualKubelet,
    versions: NodeVersions,
    agent_process: Hosts,
    controller_process: Controllers,
    control_plane: ControlPlane,
    kube: KubeApi,
) -> None:
    """Lifecycle own: the Lease changes hands twice, and the Node is Ready in every version."""
    agent = agent_process(_SETTINGS, node_name=kubelet.name)
    name = kubelet.name
    controller = controller_process(agent, settings={"COCOON_NODE_LIFECYCLE": "auto"})
    _wait_condition(kube, name, "CocoonAgentReachable")
    _hand_over(kubelet, kube)

    kube.merge(f"{cluster.NODES}/{name}", {"metadata": {"annotations": {_OURS: "cocoon-node-controller"}}})
    kubelet.stop()
    controller.settings["COCOON_NODE_LIFECYCLE"] = "own"
    controller.stop()
    controller.start()
    wait_for(lambda: _holder(kube, name) == "cocoon-node-controller", 30, what="the Lease being taken")
    wait_for(lambda: _ready(kube, name)["reason"] == "AgentReporting", 30, what="Ready being written")
    _wait_two_renewals(kube, name)

    controller.settings["COCOON_NODE_LIFECYCLE"] = "external"
    controller.stop()
    controller.start()
    kubelet.start(publishes=False)
    wait_for(lambda: _holder(kube, name) == name, 30, what="the virtual kubelet taking its Lease back")
    _wait_two_renewals(kube, name)
    _publish_again(kubelet, kube, class_label="a")
    controller.stop()
    run_command(control_plane.kubeconfig(), [agent], "prune", name)

    seen = versions.end(kube)
    _assert_never_missing(seen, kubelet, classes=["a"])
    assert {cluster.condition(each, "Ready")["status"] for each in seen} == {"True"}
    assert [taint for each in seen for taint in each["spec"].get("taints", []) if "unreachable" in taint["key"]] == []
    assert _traces(seen[-1]) == set()


def _hand_over(kubelet: VirtualKubelet, kube: KubeApi) -> None:
    """Steps 2 to 4: stop, have it forget, start without publishing; then it has written once more."""
    kubelet.stop()
    forgotten = {LAST_STATUS: None, LAST_METADATA: None}
    kube.merge(f"{cluster.NODES}/{kubelet.name}", {"metadata": {"annotations": forgotten}})
    kubelet.start(publishes=False)
    _wait_two_renewals(kube, kubelet.name)


def _publish_again(kubelet: VirtualKubelet, kube: KubeApi, *, class_label: str) -> None:
    kubelet.stop()
    kubelet.labels = dict(kubelet.labels) | {cluster.CPU_CLASS: class_label}
    kubelet.start(publishes=True)
    _wait_two_renewals(kube, kubelet.name)
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": kubelet.name, "labels": _labels(kube, kubelet.name)},
    }
    kube.apply(f"{cluster.NODES}/{kubelet.name}", body, manager="node-labels", force=False)


def _assert_never_missing(seen: list[Json], kubelet: VirtualKubelet, *, classes: list[str]) -> None:
    """No version lacks a label or shows another number; the class is one of `classes`, in that order."""
    assert len(seen) > 5
    for each in seen:
        status, labels = each["status"], cluster.labels_of(each)
        assert (status["capacity"], status["allocatable"]) == (_CAPACITY, _ALLOCATABLE), each["metadata"][
            "managedFields"
        ]
        assert labels.pop(cluster.CPU_CLASS) in classes
        assert labels == {key: value for key, value in kubelet.labels.items() if key != cluster.CPU_CLASS}
    shown = [each["metadata"]["labels"][cluster.CPU_CLASS] for each in seen]
    assert shown == sorted(shown, key=classes.index)


def _traces(node: Json) -> set[str]:
    """What of ours is left on a Node."""
    metadata = node["metadata"]
    found = {entry["manager"] for entry in metadata["managedFields"] if entry["manager"].startswith("cocoon-node")}
    found |= {key for key in metadata.get("annotations", {}) if key == _OURS}
    return found | {each["type"] for each in node["status"]["conditions"] if each["type"].startswith("Cocoon")}


def _labels(kube: KubeApi, name: str) -> dict[str, str]:
    labels: dict[str, str] = kube.get(f"{cluster.NODES}/{name}")["metadata"]["labels"]
    return labels


def _ready(kube: KubeApi, name: str) -> Json:
    return cluster.condition(kube.get(f"{cluster.NODES}/{name}"), "Ready")


def _address(node: Json) -> str:
    return str(next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP"))


def _holder(kube: KubeApi, name: str) -> str:
    holder: str = kube.get(f"{cluster.LEASES}/{name}")["spec"]["holderIdentity"]
    return holder


def _wait_condition(kube: KubeApi, name: str, kind: str) -> None:
    wait_for(
        lambda: cluster.condition(kube.get(f"{cluster.NODES}/{name}"), kind).get("status") == "True",
        30,
        what=f"{kind} of {name}",
    )


def _wait_two_renewals(kube: KubeApi, name: str) -> None:
    """Wait until whoever holds the Lease has renewed it twice, and with it written whatever it wanted to."""
    for _ in range(2):
        before = _renewed_at(kube, name)
        wait_for(partial(_is_renewed, kube, name, before), 40, what=f"the Lease of {name} being renewed")


def _is_renewed(kube: KubeApi, name: str, before: str) -> bool:
    return _renewed_at(kube, name) != before


def _renewed_at(kube: KubeApi, name: str) -> str:
    return str(kube.get(f"{cluster.LEASES}/{name}")["spec"]["renewTime"])
