"""A stand-in for a virtual kubelet that keeps one Node and, as long as it is told to, publishes its figures itself.

It writes as the real library does: by strategic merge patches of the status under a manager of its own, with what it
applied last in two annotations. What was applied last and is not wanted any more is taken off; where the annotations
are missing, nothing is. Its Lease carries the Node's name as the holder.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from devenv.kube_api import ApiError, Json, KubeApi
from tests.support import cluster

MANAGER = "virtual-kubelet"
LAST_STATUS = "virtual-kubelet.io/last-applied-node-status"
LAST_METADATA = "virtual-kubelet.io/last-applied-object-meta"

_RENEW_SECONDS = 2.0


@dataclass
class VirtualKubelet:
    """One virtual kubelet; `labels`, `capacity` and `allocatable` are what it publishes while it does."""

    kube: KubeApi
    name: str
    labels: Mapping[str, str]
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self, *, publishes: bool) -> None:
        """Register the Node where there is none, write what is wanted of it, and keep it alive."""
        wanted = self._wanted(publishes=publishes)
        if self.kube.find(f"{cluster.NODES}/{self.name}") is None:
            body = {"metadata": {"name": self.name, "labels": wanted["metadata"]["labels"]}, "status": wanted["status"]}
            self.kube.create(cluster.NODES, body, fieldManager=MANAGER)
        self._write(wanted)
        self._renew()
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._run, args=(wanted,), name=f"virtual kubelet {self.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End; the Node and its Lease stay as they are."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, wanted: Json) -> None:
        while not self._stopped.wait(_RENEW_SECONDS):
            self._renew()
            self._write(wanted)

    def _wanted(self, *, publishes: bool) -> Json:
        status: dict[str, Any] = {
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready."}
            ],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.10"}, {"type": "Hostname", "address": self.name}],
        }
        if publishes:
            status |= {"capacity": dict(self.capacity), "allocatable": dict(self.allocatable)}
        return {"metadata": {"labels": dict(self.labels) if publishes else {}}, "status": status}

    def _write(self, wanted: Json) -> None:
        for condition in wanted["status"]["conditions"]:
            condition["lastHeartbeatTime"] = _now("%Y-%m-%dT%H:%M:%SZ")
        live = self.kube.get(f"{cluster.NODES}/{self.name}")
        annotations = live["metadata"].get("annotations", {})
        last: Json = {}
        if LAST_STATUS in annotations and LAST_METADATA in annotations:
            last = {"metadata": json.loads(annotations[LAST_METADATA]), "status": json.loads(annotations[LAST_STATUS])}
        remembered = {
            LAST_STATUS: json.dumps(wanted["status"], sort_keys=True),
            LAST_METADATA: json.dumps(wanted["metadata"], sort_keys=True),
        }
        metadata = {"annotations": remembered, "labels": _patched(last, wanted, "metadata", "labels")}
        status = wanted["status"] | {
            kind: _patched(last, wanted, "status", kind) for kind in ("capacity", "allocatable")
        }  # fmt: skip
        self.kube.strategic(
            f"{cluster.NODES}/{self.name}/status", {"metadata": metadata, "status": status}, manager=MANAGER
        )

    def _renew(self) -> None:
        renewed = _now("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": renewed}
        try:
            self.kube.merge(f"{cluster.LEASES}/{self.name}", {"spec": spec}, manager=MANAGER)
        except ApiError:
            self.kube.create(cluster.LEASES, {"metadata": {"name": self.name}, "spec": spec}, fieldManager=MANAGER)


def _now(form: str) -> str:
    return datetime.datetime.now(datetime.UTC).strftime(form)


def _patched(last: Json, wanted: Json, part: str, key: str) -> dict[str, str | None]:
    """What a patch says about one map: what is wanted, and null for what was applied last and is wanted no more."""
    before, now = last.get(part, {}).get(key, {}), wanted[part].get(key, {})
    return dict.fromkeys(before.keys() - now.keys()) | dict(now)
