"""Pods as an API server sends them, 4 KB each, with what schedulers, controllers and kubectl leave in them."""

import json
from typing import Any

LIST_VERSION = 1_000_000
SETS_API = "cocoonset.cocoonstack.io/v1"
_AT = "2026-01-01T00:00:00Z"


def names(number: int) -> tuple[str, str]:
    """Return namespace and name of a pod."""
    return f"team-{number % 50}", f"set-{number}-0"


def pod_uid(number: int) -> str:
    """Return the UID of a pod."""
    return f"00000000-0000-4000-8000-{number:012d}"


def set_uid(number: int) -> str:
    """Return the UID of the set that owns a pod."""
    return f"10000000-0000-4000-8000-{number:012d}"


def pod(number: int, version: int, node: str, *, keep: bool = False, deleting: bool = False) -> dict[str, Any]:
    """Return the main pod of a CocoonSet, running on a node; `keep` is its flag, `deleting` that it is terminating."""
    namespace, name = names(number)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": pod_uid(number),
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": _AT,
        "labels": {
            "cocoonset.cocoonstack.io/name": f"set-{number}",
            "cocoonset.cocoonstack.io/role": "main",
            "cocoonset.cocoonstack.io/slot": "0",
        },
        "annotations": {
            "cocoonset.cocoonstack.io/generation": "1",
            "cocoonset.cocoonstack.io/image": "registry.example/images/debian:12",
            "cocoonset.cocoonstack.io/managed": "true",
            "cocoonset.cocoonstack.io/mode": "run",
            "cocoonset.cocoonstack.io/os": "linux",
            "vm.cocoonstack.io/id": f"vm-{number:08d}",
            "vm.cocoonstack.io/ip": "10.0.0.1",
            "vm.cocoonstack.io/lifecycle-state": "ready",
        },
        "ownerReferences": [
            {
                "apiVersion": SETS_API,
                "kind": "CocoonSet",
                "name": f"set-{number}",
                "uid": set_uid(number),
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": _managed_fields(),
    }
    if keep:
        metadata["annotations"]["vm.cocoonstack.io/keep-snapshot-on-delete"] = "true"
    if deleting:
        metadata |= {"deletionTimestamp": _AT, "deletionGracePeriodSeconds": 0}
    return {"metadata": metadata, "spec": _spec(node), "status": _status(name)}


def _managed_fields() -> list[dict[str, Any]]:
    """Return who owns what, shorter than in most clusters."""
    nothing: dict[str, Any] = {}
    container = {
        ".": nothing,
        "f:env": {f'k:{{"name":"VARIABLE_{n}"}}': {".": nothing, "f:name": nothing} for n in range(2)},
        "f:image": nothing,
        "f:name": nothing,
        "f:resources": {"f:requests": {"f:cpu": nothing, "f:ephemeral-storage": nothing, "f:memory": nothing}},
    }
    labels = {"f:cocoonset.cocoonstack.io/name": nothing, "f:cocoonset.cocoonstack.io/role": nothing}
    operator = {
        "f:metadata": {"f:labels": labels, "f:annotations": {"f:cocoonset.cocoonstack.io/managed": nothing}},
        "f:spec": {"f:containers": {'k:{"name":"vm"}': container}, "f:restartPolicy": nothing},
    }
    condition = {".": nothing, "f:lastTransitionTime": nothing, "f:status": nothing, "f:type": nothing}
    runtime = {
        "f:metadata": {"f:annotations": {"f:vm.cocoonstack.io/id": nothing, "f:vm.cocoonstack.io/ip": nothing}},
        "f:status": {
            "f:conditions": {f'k:{{"type":"{kind}"}}': condition for kind in ("Initialized", "Ready")},
            "f:containerStatuses": nothing,
            "f:phase": nothing,
            "f:podIP": nothing,
        },
    }
    entry = {"operation": "Update", "apiVersion": "v1", "time": _AT, "fieldsType": "FieldsV1"}
    return [
        {"manager": "cocoonset-operator"} | entry | {"fieldsV1": operator},
        {"manager": "cocoon-vk"} | entry | {"fieldsV1": runtime, "subresource": "status"},
    ]


def _spec(node: str) -> dict[str, Any]:
    mount = {"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    field = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [field]}},
    ]
    return {
        "volumes": [{"name": "kube-api-access", "projected": {"sources": sources, "defaultMode": 420}}],
        "containers": [
            {
                "name": "vm",
                "image": "registry.example/images/debian:12",
                "ports": [{"name": "ssh", "containerPort": 22, "protocol": "TCP"}],
                "env": [{"name": f"VARIABLE_{n}", "value": f"value {n}"} for n in range(4)],
                "resources": {"requests": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"}},
                "volumeMounts": [mount],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": node,
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoSchedule"},
            *(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ),
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _status(name: str) -> dict[str, Any]:
    condition = {"status": "True", "lastProbeTime": None, "lastTransitionTime": _AT}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [{"type": kind} | condition for kind in kinds],
        "hostIP": "192.0.2.1",
        "hostIPs": [{"ip": "192.0.2.1"}],
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}],
        "startTime": _AT,
        "containerStatuses": [
            {
                "name": "vm",
                "state": {"running": {"startedAt": _AT}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example/images/debian:12",
                "imageID": "sha256:0000000000000000000000000000000000000000000000000000000000000000",
                "containerID": f"cocoon://{name}",
                "started": True,
            }
        ],
        "qosClass": "Burstable",
    }


def encode(obj: object) -> bytes:
    """Return an object as API servers write it, without spaces."""
    return json.dumps(obj, separators=(",", ":")).encode()


def event(kind: str, obj: dict[str, Any]) -> bytes:
    """Return one line of a watch."""
    return encode({"type": kind, "object": {"kind": "Pod", "apiVersion": "v1"} | obj}) + b"\n"


def node_name(number: int, nodes: int) -> str:
    """Return the node of a pod; the simulated agents have these names."""
    return f"sim-{number % nodes:05d}"


def list_page(items: list[bytes], token: str = "") -> bytes:
    """Return one page of a list; the continue token is empty on the last."""
    metadata = {"resourceVersion": str(LIST_VERSION)} | ({"continue": token} if token else {})
    head = b'{"kind":"PodList","apiVersion":"v1","metadata":' + encode(metadata) + b',"items":['
    return head + b",".join(items) + b"]}\n"
