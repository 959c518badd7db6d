"""A stand-in for the VM runtime of a node without hypervisor, for tests and the demonstration.

It runs nothing. It does to the API and to the agent's store what a real runtime does around a VM: says that a pod's VM
lives, writes a snapshot when the pod is told to hibernate, also while the pod is being deleted, and ends the pod's
deletion. Whatever it reports carries its own name, so that nobody takes it for the real thing.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from devenv.errors import DevenvError
from devenv.kube_api import ApiError, Json, KubeApi, UnreachableError

STAND_IN = "stand-in"

_POLL_SECONDS = 0.1
_VM = "vm.cocoonstack.io/"
_SET = "cocoonset.cocoonstack.io/"
_GONE = (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT)


def vm_name(pod: Json) -> str:
    """Return the name of a pod's VM."""
    metadata = pod["metadata"]
    named: str = metadata.get("annotations", {}).get(f"{_VM}name", "")
    return named or f"vk-{metadata['namespace']}-{metadata['name']}"


def write_snapshot(store: Path, name: str, *, size_bytes: int = 4096) -> str:
    """Write a small, complete snapshot into a directory store, by rename as writers must; return its id.

    One of that name that is there already is replaced, as a VM that hibernates again replaces its image.
    """
    snapshot_id = uuid.uuid4().hex
    draft = store / f".pending-{name}.{snapshot_id[:8]}"
    draft.mkdir(parents=True)
    config = {"id": snapshot_id, "name": name, "image": STAND_IN, "cpu": 1, "hypervisor": STAND_IN}
    (draft / "disk").write_bytes(b"\0" * size_bytes)
    (draft / "snapshot.json").write_text(json.dumps({"version": 1, "config": config}))
    target = store / name
    if target.exists():
        old = store / f".pending-{name}.old-{snapshot_id[:8]}"
        os.rename(target, old)
        os.rename(draft, target)
        shutil.rmtree(old)
    else:
        os.rename(draft, target)
    return snapshot_id


@dataclass
class VmRuntime:
    """The runtime of one node, on a thread of its own. Use it as a context manager.

    `store` is the directory of the agent's snapshots. `writes_late`: a snapshot is written for each pod that is being
    deleted, before its deletion is ended. `holds`: pods that are being deleted stay, as on a node that hangs.
    """

    kube: KubeApi
    node: str
    store: Path
    writes_late: bool = False
    holds: bool = False
    snapshots: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> VmRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look after the node's pods."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._run, name=f"vm runtime of {self.node}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; pods stay as they are. Raises DevenvError when something unexpected had ended it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self.problem:
            raise DevenvError(f"the stand-in runtime of {self.node} ended: {self.problem}")

    def _run(self) -> None:
        try:
            while not self._stopped.wait(_POLL_SECONDS):
                try:
                    pods = self.kube.items("/api/v1/pods", fieldSelector=f"spec.nodeName={self.node}")
                except (UnreachableError, ApiError):
                    continue  # An API server that restarts is nothing a runtime ends for.
                for pod in pods:
                    self._look_after(pod)
        except Exception as error:
            self.problem = repr(error)

    def _look_after(self, pod: Json) -> None:
        try:
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod)
            elif self._wants_hibernation(pod):
                self._hibernate(pod)
            elif not pod["metadata"].get("annotations", {}).get(f"{_VM}id"):
                self._begin(pod)
        except UnreachableError:
            return
        except ApiError as error:
            # Deleted or replaced while we looked at it.
            if error.status not in _GONE:
                raise

    def _begin(self, pod: Json) -> None:
        now = pod["metadata"]["creationTimestamp"]
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": STAND_IN,
            "imageID": STAND_IN,
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        status = {"phase": "Running", "containerStatuses": [container]}
        self._patch(pod, {"status": status}, "/status")
        self._annotate(pod, {f"{_VM}id": f"{STAND_IN}-{uuid.uuid4().hex[:8]}", f"{_VM}lifecycle-state": "ready"})

    def _hibernate(self, pod: Json) -> None:
        self._annotate(pod, {f"{_VM}lifecycle-state": "hibernating"})
        self._snapshot(pod)
        generation = pod["metadata"].get("annotations", {}).get(f"{_SET}generation", "")
        self._annotate(pod, {f"{_VM}lifecycle-state": "hibernated", f"{_VM}lifecycle-observed-generation": generation})

    def _end(self, pod: Json) -> None:
        if self.writes_late and vm_name(pod) not in self.snapshots:
            self._snapshot(pod)
        if not self.holds:
            # A kubelet's way to end a deletion; the UID keeps it off the next pod of that name.
            uid = pod["metadata"]["uid"]
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self.kube.delete(_path(pod), **body)  # type: ignore[arg-type] # DeleteOptions nest; the client passes them on

    def _snapshot(self, pod: Json) -> None:
        name = vm_name(pod)
        self.snapshots[name] = write_snapshot(self.store, name)

    @staticmethod
    def _wants_hibernation(pod: Json) -> bool:
        annotations = pod["metadata"].get("annotations", {})
        state = annotations.get(f"{_VM}lifecycle-state")
        return annotations.get(f"{_VM}hibernate") == "true" and state not in (None, "hibernated")

    def _annotate(self, pod: Json, annotations: dict[str, str]) -> None:
        self._patch(pod, {"metadata": {"annotations": annotations}}, "")

    def _patch(self, pod: Json, body: Json, subresource: str) -> None:
        body = body | {"metadata": body.get("metadata", {}) | {"uid": pod["metadata"]["uid"]}}
        self.kube.merge(f"{_path(pod)}{subresource}", body, manager=f"vm-runtime-{STAND_IN}")


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
