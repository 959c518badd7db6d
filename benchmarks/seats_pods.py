"""When pods reach points of their lives, as a watch of the API shows it."""

import threading
import time

from benchmarks.seats_cluster import PODS
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi, UnreachableError

_WATCH_SECONDS = 20


class PodTimes:
    """The first time each pod was seen hibernated, bound, and gone; Unix seconds by pod name."""

    def __init__(self, plane: ControlPlane) -> None:
        self.hibernated: dict[str, float] = {}
        self.bound: dict[str, float] = {}
        self.gone: dict[str, float] = {}
        self._plane = plane
        self._stopped = False
        self._begun = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        self._begun.wait(30)

    def stop(self) -> None:
        """Watch no longer; what is known stays as it is."""
        self._stopped = True

    def _run(self) -> None:
        with self._plane.client() as kube:
            try:
                self._follow(kube)
            except UnreachableError:
                # The control plane ends while this still waits for the end of its watch.
                if not self._stopped:
                    raise

    def _follow(self, kube: KubeApi) -> None:
        version = kube.get(PODS)["metadata"]["resourceVersion"]
        self._begun.set()
        while not self._stopped:
            for event in kube.watch(PODS, version, seconds=_WATCH_SECONDS):
                now, pod = time.time(), event["object"]
                version, name = pod["metadata"]["resourceVersion"], pod["metadata"]["name"]
                if self._stopped:
                    return
                if event["type"] == "DELETED":
                    self.gone.setdefault(name, now)
                    continue
                if pod["spec"].get("nodeName"):
                    self.bound.setdefault(name, now)
                if pod["metadata"].get("annotations", {}).get("vm.cocoonstack.io/lifecycle-state") == "hibernated":
                    self.hibernated.setdefault(name, now)
