"""Keeps every version of a Node that a watch shows, from one moment to another."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from devenv.errors import DevenvError
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.waiting import wait_for

_LAST = "test.example/last-version"


@dataclass
class NodeVersions:
    """The versions of the Node `name`, in order: `begin` starts to collect, `end` returns all that there were.

    `kube` is used by this alone, because its watch occupies a connection; closing it ends the watch.
    """

    kube: KubeApi
    name: str
    versions: list[Json] = field(default_factory=list)
    _thread: threading.Thread | None = None
    problem: str = ""

    def begin(self) -> None:
        """Start with the Node as it is now."""
        node = self.kube.get(f"{cluster.NODES}/{self.name}")
        self.versions.append(node)
        since = node["metadata"]["resourceVersion"]
        self._thread = threading.Thread(
            target=self._follow, args=(since,), name=f"versions of {self.name}", daemon=True
        )
        self._thread.start()

    def end(self, writer: KubeApi) -> list[Json]:
        """Mark the last version, wait until the watch has shown it, and return all."""
        writer.merge(f"{cluster.NODES}/{self.name}", {"metadata": {"annotations": {_LAST: "true"}}})

        def is_shown() -> bool:
            return bool(self.problem) or _LAST in self.versions[-1]["metadata"].get("annotations", {})

        wait_for(is_shown, 30, what="the watch showing the last version")
        assert not self.problem, self.problem
        if self._thread is not None:
            self._thread.join()
        return self.versions

    def _follow(self, since: str) -> None:
        selector = f"metadata.name={self.name}"
        try:
            for event in self.kube.watch(cluster.NODES, since, seconds=600, fieldSelector=selector):
                self.versions.append(event["object"])
                if event["type"] == "DELETED" or _LAST in event["object"]["metadata"].get("annotations", {}):
                    return
        except DevenvError as error:
            self.problem = str(error)
