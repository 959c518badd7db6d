"""A stand-in for the VM runtime of a node without hypervisor, for tests and the demonstration.

It runs nothing. It does to the API, to the agent's store and to the registry what a real runtime does around a VM: it
says that a pod's VM lives, writes and pushes a snapshot when the pod is told to hibernate, restores it on the pod that
wakes, from the copy on this host if the agent says that it is the right one, and ends the pod's deletion. Whatever it
reports carries its own name, so that nobody takes it for the real thing.

The state of a VM is one word here, its `life`: made up at a fresh boot, kept by every snapshot and restore. So a test
sees whether a VM that woke is the one that was put to sleep.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from devenv.errors import DevenvError
from devenv.kube_api import ApiError, Json, KubeApi, UnreachableError
from devenv.pod_watch import PodWatch
from devenv.snapshot_registry import PushedSnapshot, RegistryError, SnapshotRegistry
from devenv.vm_snapshots import STAND_IN, LocalCopies, write_snapshot

LIFE = f"{STAND_IN}.vm.cocoonstack.io/life"
RESTORED = f"{STAND_IN}.vm.cocoonstack.io/restored"

_LOOK_SECONDS = 0.1
_VM = "vm.cocoonstack.io/"
_SET = "cocoonset.cocoonstack.io/"
_GONE = (httpx.codes.NOT_FOUND, httpx.codes.CONFLICT)


def vm_name(pod: Json) -> str:
    """Return the name of a pod's VM."""
    metadata = pod["metadata"]
    named: str = metadata.get("annotations", {}).get(f"{_VM}name", "")
    return named or f"vk-{metadata['namespace']}-{metadata['name']}"


@dataclass(frozen=True, slots=True)
class Restore:
    """How a VM was restored: `warm` from the copy on this host, else from the registry, and `why` not from the copy."""

    vm: str
    snapshot_id: str
    warm: bool
    why: str


@dataclass
class VmRuntime:
    """The runtime of one node, on a thread of its own. Use it as a context manager.

    `store` is the directory of the snapshots of the agent at `agent_address`. Without a `registry` nothing is pushed,
    and a pod that is to be restored is booted from the copy on this host, or fresh. `say` gets a line for each restore.

    `writes_late`: a snapshot is written for each pod that is being deleted, before its deletion is ended. `holds`: pods
    that are being deleted stay, as on a node that hangs. `idle`: nothing is done for any pod.
    """

    kube: KubeApi
    node: str
    store: Path
    registry: SnapshotRegistry | None = None
    agent_address: str = ""
    say: Callable[[str], None] = lambda _: None
    writes_late: bool = False
    holds: bool = False
    idle: bool = False
    snapshots: dict[str, str] = field(default_factory=dict)
    restores: list[Restore] = field(default_factory=list)
    problem: str = ""
    _lives: dict[str, str] = field(default_factory=dict)
    _saved: set[str] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _watch: PodWatch | None = None
    _copies: LocalCopies | None = None

    def __enter__(self) -> VmRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look after the node's pods."""
        self._stopped.clear()
        self._copies = LocalCopies(self.agent_address) if self.agent_address else None
        self._watch = PodWatch(self.kube, self.node)
        self._thread = threading.Thread(
            target=self._run, args=(self._watch,), name=f"vm runtime of {self.node}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; pods stay as they are. Raises DevenvError when something unexpected had ended it."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.stop()
            self._watch.changed.set()
        if self._thread is not None:
            self._thread.join()
        if self._copies is not None:
            self._copies.close()
        if self.problem:
            raise DevenvError(f"the stand-in runtime of {self.node} ended: {self.problem}")

    def _run(self, watch: PodWatch) -> None:
        try:
            while not self._stopped.is_set() and not watch.problem:
                # Also without a change: what failed is tried again, and a test changes what is done.
                watch.changed.wait(_LOOK_SECONDS)
                watch.changed.clear()
                for pod in watch.pods():
                    if not self.idle and not self._stopped.is_set():
                        self._look_after(pod)
            self.problem = watch.problem
        except Exception as error:
            self.problem = repr(error)

    def _look_after(self, pod: Json) -> None:
        try:
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod)
            elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                self._bring_on(pod)
        except (UnreachableError, RegistryError):
            return  # Tried again at the next look.
        except ApiError as error:
            # Deleted or replaced while we looked at it.
            if error.status not in _GONE:
                raise

    def _bring_on(self, pod: Json) -> None:
        """Do the next thing for a pod's VM, if there is one."""
        annotations = pod["metadata"].get("annotations", {})
        state, is_told = annotations.get(f"{_VM}lifecycle-state"), annotations.get(f"{_VM}hibernate") == "true"
        lives = bool(annotations.get(f"{_VM}id"))
        if is_told and lives:
            self._hibernate(pod)
        elif not lives and not (is_told and state == "hibernated"):
            # Also when it is told to hibernate before it ever ran: it has to run first, or there is nothing to save.
            self._begin(pod)
        elif state == "hibernating":
            # Told otherwise in between: what was saved is older than the VM is by now.
            self._saved.discard(pod["metadata"]["uid"])
            self._annotate(pod, {f"{_VM}lifecycle-state": "ready", **_observed(pod)})
        elif annotations.get(f"{_VM}lifecycle-observed-generation") != _generation(pod):
            self._annotate(pod, _observed(pod))

    def _begin(self, pod: Json) -> None:
        uid, annotations = pod["metadata"]["uid"], pod["metadata"].get("annotations", {})
        # A VM that lived before is only ever restored.
        is_wanted = annotations.get(f"{_VM}restore-from-hibernate") == "true" or LIFE in annotations
        restored: dict[str, str | None] = {}
        if is_wanted and self.registry is not None:
            restore = self._restore(pod, self.registry)
            if restore is None:
                return
            restored = {RESTORED: "warm" if restore.warm else "cold"}
        life = annotations.get(LIFE) or self._lives.setdefault(uid, uuid.uuid4().hex[:8])
        running = {"running": {"startedAt": pod["metadata"]["creationTimestamp"]}}
        self._report(pod, running, ready=True)
        vm_id = f"{STAND_IN}-{uuid.uuid4().hex[:8]}"
        live = {f"{_VM}id": vm_id, f"{_VM}ip": "192.0.2.1", f"{_VM}lifecycle-state": "ready", LIFE: life}
        self._annotate(pod, {**live, **restored, **_observed(pod)})

    def _restore(self, pod: Json, registry: SnapshotRegistry) -> Restore | None:
        """Restore the snapshot that the registry names, from here if it is here; None when there is none to restore."""
        vm, annotations = vm_name(pod), pod["metadata"].get("annotations", {})
        wanted = registry.find(vm)
        if wanted is None:
            if annotations.get(f"{_VM}lifecycle-state") != "failed":
                self._annotate(pod, {f"{_VM}lifecycle-state": "failed", **_observed(pod)})
            return None
        if annotations.get(f"{_VM}lifecycle-state") is None:
            self._annotate(pod, {f"{_VM}lifecycle-state": "creating", **_observed(pod)})
        why = "no agent to ask" if self._copies is None else self._copies.problem_with(vm, wanted.snapshot_id)
        if why:
            write_snapshot(self.store, vm, snapshot_id=wanted.snapshot_id, life=wanted.life)
        self._lives[pod["metadata"]["uid"]] = wanted.life
        restore = Restore(vm, wanted.snapshot_id, not why, why)
        self.restores.append(restore)
        where = f"from the copy kept on {self.node}" if restore.warm else f"pulled to {self.node}: {why}"
        self.say(f"{STAND_IN} runtime: {vm} restored {where}")
        self._send_event(pod, "RestoredWarm" if restore.warm else "RestoredCold", f"snapshot {where}")
        return restore

    def _hibernate(self, pod: Json) -> None:
        uid, vm = pod["metadata"]["uid"], vm_name(pod)
        if uid not in self._saved:
            self._annotate(pod, {f"{_VM}lifecycle-state": "hibernating", **_observed(pod)})
            self._save(pod)
            self._saved.add(uid)
        if self.registry is not None:
            self.registry.push(vm, PushedSnapshot(self.snapshots[vm], self._life(pod)))
        self._report(pod, {"waiting": {"reason": "Hibernated"}}, ready=False)
        gone = {f"{_VM}id": None, f"{_VM}ip": None, f"{_VM}lifecycle-state": "hibernated"}
        self._annotate(pod, {**gone, **_observed(pod)})
        self._saved.discard(uid)

    def _end(self, pod: Json) -> None:
        if self.writes_late and vm_name(pod) not in self.snapshots:
            self._save(pod)
        if not self.holds:
            # A kubelet's way to end a deletion; the UID keeps it off the next pod of that name.
            uid = pod["metadata"]["uid"]
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self.kube.delete(_path(pod), **body)  # type: ignore[arg-type] # DeleteOptions nest; the client passes them on

    def _save(self, pod: Json) -> None:
        self.snapshots[vm_name(pod)] = write_snapshot(self.store, vm_name(pod), life=self._life(pod))

    def _life(self, pod: Json) -> str:
        life: str = pod["metadata"].get("annotations", {}).get(LIFE, "")
        return life or self._lives.get(pod["metadata"]["uid"], "")

    def _report(self, pod: Json, state: Json, *, ready: bool) -> None:
        container = {
            "name": pod["spec"]["containers"][0]["name"],
            "image": STAND_IN,
            "imageID": STAND_IN,
            "ready": ready,
            "restartCount": 0,
            "state": state,
        }
        self._patch(pod, {"status": {"phase": "Running", "containerStatuses": [container]}}, "/status")

    def _send_event(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        event = {
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1"}
            | {key: metadata[key] for key in ("name", "namespace", "uid")},
            "reason": reason,
            "message": message,
            "type": "Normal",
            "source": {"component": f"vm-runtime-{STAND_IN}", "host": self.node},
        }
        self.kube.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)

    def _annotate(self, pod: Json, annotations: dict[str, str | None]) -> None:
        self._patch(pod, {"metadata": {"annotations": annotations}}, "")

    def _patch(self, pod: Json, body: Json, subresource: str) -> None:
        body = body | {"metadata": body.get("metadata", {}) | {"uid": pod["metadata"]["uid"]}}
        written = self.kube.merge(f"{_path(pod)}{subresource}", body, manager=f"vm-runtime-{STAND_IN}")
        if self._watch is not None:
            self._watch.put(written)


def _generation(pod: Json) -> str | None:
    generation: str | None = pod["metadata"].get("annotations", {}).get(f"{_SET}generation")
    return generation


def _observed(pod: Json) -> dict[str, str | None]:
    return {f"{_VM}lifecycle-observed-generation": _generation(pod)}


def _path(pod: Json) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
