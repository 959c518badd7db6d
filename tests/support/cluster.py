"""Nodes and pods of end-to-end tests, as a user of the cluster makes and sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import Json, KubeApi
from tests.support.audit import AuditLog, Write
from tests.support.waiting import wait_for

POOL = "cocoonstack.io/pool"
CPU_CLASS = "cocoonstack.io/snapshot-cpu-class"
ROLE = "node-role.kubernetes.io/cocoon-vm"
HOSTNAME = "kubernetes.io/hostname"

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
EVENTS = "/api/v1/namespaces/default/events"

# Every pod for such a Node needs it; without, nothing but our own pods could land there.
_TOLERATIONS = [{"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "cocoon", "effect": "NoSchedule"}]


def condition(node: Json, kind: str) -> Json:
    """Return the Node's condition of this type, empty when there is none."""
    conditions: list[Json] = node.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def labels_of(node: Json) -> dict[str, str]:
    """Return the Node's labels but those that the cluster's own lifecycle controller adds sooner or later."""
    labels: dict[str, str] = node["metadata"].get("labels", {})
    return {key: value for key, value in labels.items() if not key.startswith("beta.kubernetes.io/")}


def wait_ready(kube: KubeApi, name: str, deadline_seconds: float = 30) -> Json:
    """Wait until the Node exists, is Ready and free of the not-ready taint; return it."""

    def ready() -> Json | None:
        node = kube.find(f"{NODES}/{name}")
        if not node or condition(node, "Ready").get("status") != "True":
            return None
        taints = {taint["key"] for taint in node["spec"].get("taints", [])}
        return None if taints & {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} else node

    node = wait_for(ready, deadline_seconds, what=f"Node {name} becoming ready")
    assert node is not None
    return node


def wait_lease(kube: KubeApi, name: str) -> Json:
    """Wait until the Node has a Lease, which is written apart from the Node; return it."""
    lease = wait_for(lambda: kube.find(f"{LEASES}/{name}"), 30, what=f"the Lease of Node {name}")
    assert lease is not None
    return lease


def create_pod(
    kube: KubeApi,
    name: str,
    *,
    selector: Mapping[str, str],
    requests: Mapping[str, str] | None = None,
) -> None:
    """Create a pod that tolerates our taint, selects Nodes by labels, and asks for exactly `requests`."""
    resources: dict[str, Any] = {"requests": dict(requests or {})}
    huge = {key: value for key, value in resources["requests"].items() if key.startswith("hugepages-")}
    if huge:
        # Huge pages cannot be overcommitted, and the API wants memory or cpu beside them.
        resources = {"requests": {"memory": "1Mi"} | resources["requests"], "limits": huge}
    spec = {
        "containers": [{"name": "vm", "image": "vm", "resources": resources}],
        "nodeSelector": dict(selector),
        "tolerations": _TOLERATIONS,
        "terminationGracePeriodSeconds": 0,
    }
    kube.create(PODS, {"metadata": {"name": name}, "spec": spec})


def placement(kube: KubeApi, name: str) -> str:
    """Wait for the scheduler's word on a pod: the name of the Node it is bound to, or `` when it fits nowhere."""

    def decided() -> tuple[str] | None:
        pod = kube.get(f"{PODS}/{name}")
        if pod["spec"].get("nodeName"):
            return (pod["spec"]["nodeName"],)
        return ("",) if condition(pod, "PodScheduled").get("reason") == "Unschedulable" else None

    answer = wait_for(decided, 30, what=f"the scheduler deciding about pod {name}")
    assert answer is not None
    return answer[0]


def why_unschedulable(kube: KubeApi, name: str) -> str:
    """Return the scheduler's message about a pod that fits nowhere."""
    return str(condition(kube.get(f"{PODS}/{name}"), "PodScheduled").get("message", ""))


def delete_pod(kube: KubeApi, name: str) -> None:
    """Remove a pod at once, as the runtime does when its VM has ended; one that is gone already is as good."""
    kube.discard(f"{PODS}/{name}", gracePeriodSeconds=0)


def node_writes(audit: AuditLog, since: int, name: str) -> list[Write]:
    """Return the controller's writes of this Node and its status after the mark `since`; leases are not counted."""
    return audit.writes(since, user=CONTROLLER_USER, resource="nodes", name=name)


def event_reasons(kube: KubeApi, name: str) -> set[str]:
    """Return the reasons of the events about an object of this name, whoever sent them."""
    return {event["reason"] for event in kube.items(EVENTS) if event["involvedObject"].get("name") == name}
