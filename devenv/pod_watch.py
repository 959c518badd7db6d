"""The pods of one node as they are now, followed by a watch on a thread of its own."""

from __future__ import annotations

import threading

from devenv.kube_api import ApiError, Json, KubeApi, UnreachableError

_WATCH_SECONDS = 10
_PAUSE_SECONDS = 0.2


class PodWatch:
    """Keeps a copy of the pods bound to `node` until `stop`. `changed` is set after each change.

    An API server that restarts is waited for; anything else that goes wrong ends it and shows as `problem`.
    """

    def __init__(self, kube: KubeApi, node: str) -> None:
        self.changed = threading.Event()
        self.problem = ""
        self._kube = kube
        self._selector = f"spec.nodeName={node}"
        self._pods: dict[str, Json] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name=f"pods of {node}", daemon=True).start()

    def stop(self) -> None:
        """Follow no longer; the thread ends with its present watch."""
        self._stopped.set()

    def pods(self) -> list[Json]:
        """Return the pods as they are known now."""
        with self._lock:
            return list(self._pods.values())

    def put(self, pod: Json) -> None:
        """Take the answer to a write as what is known, unless something newer is, or the pod is gone."""
        with self._lock:
            if pod["metadata"]["uid"] in self._pods:
                self._take(pod)

    def _take(self, pod: Json) -> None:
        """Take a version unless a newer one is known: the watch brings back what our own writes have overtaken."""
        known = self._pods.get(pod["metadata"]["uid"])
        if known is None or _version(known) < _version(pod):
            self._pods[pod["metadata"]["uid"]] = pod

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow()
            except (UnreachableError, ApiError):
                # The server restarts, or the version is too old: begin again.
                self._stopped.wait(_PAUSE_SECONDS)
            except Exception as error:
                # The client is closed after `stop`, while this thread still waits for its watch.
                if not self._stopped.is_set():
                    self.problem = repr(error)
                return

    def _follow(self) -> None:
        listing = self._kube.get("/api/v1/pods", fieldSelector=self._selector)
        with self._lock:
            self._pods = {pod["metadata"]["uid"]: pod for pod in listing["items"]}
        self.changed.set()
        version: str = listing["metadata"]["resourceVersion"]
        while not self._stopped.is_set():
            events = self._kube.watch("/api/v1/pods", version, seconds=_WATCH_SECONDS, fieldSelector=self._selector)
            for event in events:
                pod = event["object"]
                version = pod["metadata"]["resourceVersion"]
                with self._lock:
                    if event["type"] == "DELETED":
                        self._pods.pop(pod["metadata"]["uid"], None)
                    else:
                        self._take(pod)
                self.changed.set()


def _version(pod: Json) -> int:
    return int(pod["metadata"]["resourceVersion"])
