"""A VM host in a test: a real agent, a stand-in runtime, its Node, pods and CocoonSets, and its snapshots on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devenv.cocoon_programs import AgentProcess
from devenv.kube_api import ApiError, Json, KubeApi
from devenv.toolchain import REPOSITORY
from devenv.vm_runtime import VmRuntime
from devenv.vm_snapshots import write_snapshot

KEEP = "vm.cocoonstack.io/keep-snapshot-on-delete"
MANAGED = "cocoonset.cocoonstack.io/managed"
STASH = "cocoonset.cocoonstack.io/hibernated-on-node"
RESTORE = "vm.cocoonstack.io/restore-from-hibernate"

SETS_API = "/apis/cocoonset.cocoonstack.io/v1"
CRDS_FILE = REPOSITORY / "devenv" / "cocoonset_crds.yaml"


def install_sets(kube: KubeApi) -> None:
    """Have the API serve CocoonSets and CocoonHibernations."""
    kube.apply_file(CRDS_FILE, manager="test")


def sets_served(kube: KubeApi) -> bool:
    """Whether the API answers for CocoonSets."""
    try:
        return kube.find(f"{SETS_API}/cocoonsets") is not None
    except ApiError:
        return False  # its storage is still being made


def create_set(
    kube: KubeApi,
    name: str,
    *,
    suspend: bool = False,
    stash: str = "",
    namespace: str = "default",
    spec: Mapping[str, Any] | None = None,
) -> Json:
    """Create a CocoonSet and return it; `spec` is laid over what every set here has."""
    annotations = {STASH: stash} if stash else {}
    body = {
        "apiVersion": "cocoonset.cocoonstack.io/v1",
        "kind": "CocoonSet",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"suspend": suspend, "agent": {"image": "vm"}} | dict(spec or {}),
    }
    return kube.create(f"{SETS_API}/namespaces/{namespace}/cocoonsets", body)


def set_path(name: str, namespace: str = "default") -> str:
    """Return the path of a CocoonSet."""
    return f"{SETS_API}/namespaces/{namespace}/cocoonsets/{name}"


@dataclass
class VmHost:
    """One host. `pods` are the paths of the pods made here."""

    kube: KubeApi
    agent: AgentProcess
    runtime: VmRuntime
    pods: list[str] = field(default_factory=list)

    @property
    def node(self) -> str:
        """Name of the Node."""
        return self.agent.node_name

    def create_pod(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] | None = None,
        owner: Json | None = None,
        managed: bool = True,
        grace_seconds: int = 30,
        namespace: str = "default",
        bind: bool = True,
    ) -> Json:
        """Create a pod bound to this host, owned by the set `owner` if one is given, and return it."""
        metadata: dict[str, Any] = {"name": name, "annotations": dict(annotations or {})}
        if managed:
            metadata["annotations"][MANAGED] = "true"
        if owner is not None:
            metadata["ownerReferences"] = [
                {
                    "apiVersion": "cocoonset.cocoonstack.io/v1",
                    "kind": "CocoonSet",
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ]
        spec: dict[str, Any] = {
            "containers": [{"name": "vm", "image": "vm"}],
            "terminationGracePeriodSeconds": grace_seconds,
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        }
        if bind:
            spec["nodeName"] = self.node
        else:
            spec["schedulingGates"] = [{"name": "test.example/never"}]
        body = {"metadata": metadata, "spec": spec}
        pod = self.kube.create(f"/api/v1/namespaces/{namespace}/pods", body)
        self.pods.append(pod_path(name, namespace))
        return pod

    def write(self, vm_name: str) -> str:
        """Write a snapshot into the store as a runtime does; return its id."""
        return write_snapshot(self.runtime.store, vm_name)

    def has(self, name: str) -> bool:
        """Whether a snapshot of this name is on disk."""
        return (self.runtime.store / name).is_dir()

    def snapshot_id(self, name: str) -> str:
        """Return the id of a snapshot on disk."""
        return str(json.loads((self.runtime.store / name / "snapshot.json").read_text())["config"]["id"])


def pod_path(name: str, namespace: str = "default") -> str:
    """Return the path of a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
