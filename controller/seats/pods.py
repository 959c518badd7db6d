"""The main pod of a main-only set, built from the set's spec.

Why this exists: the pod is what the scheduler and the runtime get to see of a set. All of it is made here, so that a
pod that wakes a VM differs from one that boots it in exactly what a wake needs.
"""

from collections.abc import Mapping
from typing import Any

from common.vm_names import pod_vm_name
from controller.cocoon_keys import (
    GENERATION,
    MANAGED,
    RESTORE,
    SET_GROUP,
    SET_KIND,
    SET_NAME,
    SET_PREFIX,
    VM_NAME,
    VM_PREFIX,
)

_HOUR_SECONDS = 3600
_STORAGE = "ephemeral-storage"
# As annotations of the pod: name of the annotation, key in `spec.agent`.
_TEXTS = (
    (f"{SET_PREFIX}image", "image"),
    (f"{SET_PREFIX}mode", "mode"),
    (f"{SET_PREFIX}os", "os"),
    (f"{SET_PREFIX}storage", "storage"),
    (f"{SET_PREFIX}network", "network"),
    (f"{VM_PREFIX}backend", "backend"),
    (f"{VM_PREFIX}conn-type", "connType"),
    (f"{VM_PREFIX}probe-port", "probePort"),
)
_FLAGS = ((f"{SET_PREFIX}force-pull", "forcePull"), (f"{VM_PREFIX}no-direct-io", "noDirectIO"))
_DEFAULTS = {"mode": "clone", "os": "linux"}


def main_pod(cocoon_set: Mapping[str, Any], *, restores: bool, preferred_node: str = "") -> dict[str, Any]:
    """Return the main pod of a set, given as its JSON object.

    With `restores` it restores the hibernate snapshot and outlives an hour without its node; `preferred_node` is where
    a copy of it is. A `spec.nodeName` is required and wins over that.
    """
    metadata, spec = cocoon_set["metadata"], cocoon_set["spec"]
    agent: Mapping[str, Any] = spec["agent"]
    name = f"{metadata['name']}-0"
    pod_spec: dict[str, Any] = {
        # A VM is gone when its runtime says so; there is nothing for containers to finish.
        "terminationGracePeriodSeconds": 1,
        "containers": [_container(agent)],
        "nodeSelector": _selector(spec),
        "tolerations": _tolerations(restores=restores),
    }
    if affinity := _affinity(str(spec.get("nodeName") or ""), preferred_node):
        pod_spec["affinity"] = {"nodeAffinity": affinity}
    if agent.get("serviceAccountName"):
        pod_spec["serviceAccountName"] = agent["serviceAccountName"]
    annotations = _annotations(cocoon_set, pod_vm_name(metadata["namespace"], name))
    if restores:
        annotations[RESTORE] = "true"
    owner = {
        "apiVersion": f"{SET_GROUP}/v1",
        "kind": SET_KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {SET_NAME: metadata["name"], f"{SET_PREFIX}role": "main", f"{SET_PREFIX}slot": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner],
        },
        "spec": pod_spec,
    }


def _annotations(cocoon_set: Mapping[str, Any], vm_name: str) -> dict[str, str]:
    spec = cocoon_set["spec"]
    agent = _DEFAULTS | {key: value for key, value in spec["agent"].items() if value not in (None, "")}
    found = {
        VM_NAME: vm_name,
        MANAGED: "true",
        GENERATION: str(cocoon_set["metadata"].get("generation", 0)),
        f"{SET_PREFIX}snapshot-policy": str(spec.get("snapshotPolicy") or "always"),
    }
    found |= {key: str(agent[field]) for key, field in _TEXTS if field in agent}
    return found | {key: "true" for key, field in _FLAGS if agent.get(field) is True}


def _container(agent: Mapping[str, Any]) -> dict[str, Any]:
    resources = {kind: dict(amounts) for kind, amounts in (agent.get("resources") or {}).items() if amounts}
    if agent.get("storage"):
        # What the VM's disk takes is asked for and bounded, so that the scheduler counts it.
        for kind in ("requests", "limits"):
            resources.setdefault(kind, {})[_STORAGE] = agent["storage"]
    container: dict[str, Any] = {"name": "agent", "image": agent["image"]}
    if resources:
        container["resources"] = resources
    if agent.get("envFrom"):
        container["envFrom"] = agent["envFrom"]
    return container


def _selector(spec: Mapping[str, Any]) -> dict[str, str]:
    selector = {"cocoonstack.io/pool": str(spec.get("nodePool") or "default")}
    if spec.get("snapshotCompatibilityClass"):
        selector["cocoonstack.io/snapshot-cpu-class"] = str(spec["snapshotCompatibilityClass"])
    return selector


def _tolerations(*, restores: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
    if restores:
        found += [
            {
                "key": f"node.kubernetes.io/{trouble}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _HOUR_SECONDS,
            }
            for trouble in ("not-ready", "unreachable")
        ]
    return found


def _affinity(required_node: str, preferred_node: str) -> dict[str, Any]:
    if required_node:
        return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_on(required_node)]}}
    if preferred_node:
        preference = {"weight": 100, "preference": _on(preferred_node)}
        return {"preferredDuringSchedulingIgnoredDuringExecution": [preference]}
    return {}


def _on(node: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
