"""CocoonSets that are suspended and woken: a registry, VM hosts with runtimes, and a controller that releases seats."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import Json, KubeApi
from devenv.snapshot_registry import RegistryProcess, SnapshotRegistry
from devenv.vm_runtime import LIFE, RESTORED, VmRuntime
from tests.support import cluster
from tests.support.vm_host import STASH, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

SEATS = {
    "COCOON_NODE_CONTROLLER_SEAT_RELEASE": "true",
    "COCOON_NODE_CONTROLLER_LEASE_DURATION_SECONDS": "2",
    "COCOON_NODE_CONTROLLER_RENEW_DEADLINE_SECONDS": "1.5",
    "COCOON_NODE_CONTROLLER_RETRY_PERIOD_SECONDS": "0.3",
}
REGISTRY = "COCOON_NODE_CONTROLLER_REGISTRY"


@dataclass
class SeatPlace:
    """One pool of hosts with its registry. Sets made here select the pool."""

    plane: ControlPlane
    kube: KubeApi
    directory: Path
    pool: str
    registry_process: RegistryProcess
    registry: SnapshotRegistry
    hosts: list[VmHost] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    controllers: list[ControllerProcess] = field(default_factory=list)
    _clients: list[Any] = field(default_factory=list)

    def add_host(self, name: str, settings: Mapping[str, str] | None = None) -> VmHost:
        """Start a host of this pool, with an agent and a runtime that knows the registry."""
        chosen = {"VK_NODE_POOL": self.pool, "VK_NODE_CPU": "64", "VK_NODE_PODS": "512"} | dict(settings or {})
        agent = AgentProcess(self.directory / name, name, chosen)
        agent.start()
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        registry = SnapshotRegistry(self.registry.base)
        runtime = VmRuntime(self.plane.client(), name, store, registry, agent.address)
        self._clients.append(registry)
        runtime.start()
        host = VmHost(self.kube, agent, runtime)
        self.hosts.append(host)
        return host

    def make_controller(self, settings: Mapping[str, str] | None = None) -> ControllerProcess:
        """Return a controller for all hosts made so far, not started."""
        controller = ControllerProcess(
            self.directory / f"controller-{len(self.controllers)}",
            self.plane.kubeconfig("controller"),
            [host.agent.endpoint for host in self.hosts],
            SEATS | {REGISTRY: self.registry.base} | dict(settings or {}),
        )
        self.controllers.append(controller)
        return controller

    def controller(
        self, settings: Mapping[str, str] | None = None, *, command: list[str] | None = None
    ) -> ControllerProcess:
        """Start a controller for all hosts made so far and wait until their Nodes are ready."""
        controller = self.make_controller(settings)
        if command is not None:
            controller.process.command = command
        controller.start()
        for host in self.hosts:
            cluster.wait_ready(self.kube, host.node)
        return controller

    def create_set(self, name: str, *, suspend: bool = False, **spec: object) -> Json:
        """Create a set of this pool with policy release."""
        self.sets.append(name)
        return create_set(
            self.kube, name, suspend=suspend, spec={"hibernatePolicy": "release", "nodePool": self.pool} | spec
        )

    def read_set(self, name: str) -> Json:
        """Return a set."""
        return self.kube.get(set_path(name))

    def phase(self, name: str) -> str:
        """Return a set's phase, empty before the first."""
        return str(self.read_set(name).get("status", {}).get("phase", ""))

    def wait_phase(self, name: str, phase: str, deadline_seconds: float = 60) -> Json:
        """Wait until a set has this phase; return it."""
        wait_for(lambda: self.phase(name) == phase, deadline_seconds, what=f"set {name} being {phase}")
        return self.read_set(name)

    def wait_reason(self, name: str, reason: str, deadline_seconds: float = 60) -> Json:
        """Wait until our condition has this reason; return the set."""
        what = f"set {name} having reason {reason}"
        wait_for(lambda: condition(self.read_set(name)).get("reason") == reason, deadline_seconds, what=what)
        return self.read_set(name)

    def suspend(self, name: str, *, suspended: bool = True) -> None:
        """Ask for a set to be suspended, or woken."""
        self.kube.merge(set_path(name), {"spec": {"suspend": suspended}})

    def wake(self, name: str) -> None:
        """Ask for a set to be woken."""
        self.suspend(name, suspended=False)

    def pod(self, name: str) -> Json | None:
        """Return the main pod of a set."""
        return self.kube.find(pod_path(f"{name}-0"))

    def run(self, name: str, **spec: object) -> str:
        """Create a set, wait until its VM runs, and return the VM's life."""
        self.create_set(name, suspend=False, **spec)
        self.wait_phase(name, "Running")
        return self.life(name)

    def put_to_sleep(self, name: str) -> str:
        """Suspend a set, wait until its seat is free, and return the node in its stash."""
        self.suspend(name)
        found = self.wait_phase(name, "Suspended")
        wait_for(lambda: self.pod(name) is None, 30, what=f"the pod of {name} being gone")
        return str(found["metadata"]["annotations"][STASH])

    def life(self, name: str) -> str:
        """Return the life of a set's VM."""
        return annotation(self.pod(name), LIFE)

    def restored(self, name: str) -> str:
        """Return how a set's VM was restored: `warm`, `cold`, or empty."""
        return annotation(self.pod(name), RESTORED)

    def release(self) -> None:
        """Stop everything and remove what was made."""
        for controller in self.controllers:
            controller.release()
        for name in self.sets:
            self.kube.discard(set_path(name))
            self.kube.discard(pod_path(f"{name}-0"), gracePeriodSeconds=0)
        for host in self.hosts:
            host.runtime.stop()
            host.runtime.kube.close()
            host.agent.release()
            for path in (f"{cluster.NODES}/{host.node}", f"{cluster.LEASES}/{host.node}"):
                self.kube.discard(path)
        for client in self._clients:
            client.close()


@contextlib.contextmanager
def seat_place(plane: ControlPlane, kube: KubeApi, directory: Path, pool: str) -> Iterator[SeatPlace]:
    """A place without hosts and controllers; whatever is started in it ends with it."""
    with RegistryProcess(directory / "registry") as process:
        registry = SnapshotRegistry(f"{process.url}/vms")
        place = SeatPlace(plane, kube, directory, pool, process, registry)
        try:
            yield place
        finally:
            place.release()
            registry.close()


def condition(cocoon_set: Json, kind: str = "SeatReleased") -> Json:
    """Return a condition of a set, empty when there is none."""
    found: list[Json] = cocoon_set.get("status", {}).get("conditions", [])
    return next((each for each in found if each["type"] == kind), {})


def annotation(thing: Json | None, key: str) -> str:
    """Return an annotation, empty when it is unset or the object does not exist."""
    return str(((thing or {}).get("metadata", {}).get("annotations") or {}).get(key, ""))


def until(condition_holds: Callable[[], object], what: str, deadline_seconds: float = 60) -> None:
    """Wait for a condition that is told in words."""
    wait_for(condition_holds, deadline_seconds, what=what)
