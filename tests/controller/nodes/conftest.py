"""A controller's Nodes part against the real API server, with the rights of the shipped RBAC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.nodes import claims, reconciler, roster
from controller.nodes.model import CONTROLLER
from controller.nodes.operator import NodeOperator
from controller.nodes.plan import NodeSettings
from controller.nodes.reconciler import NodeReconciler
from controller.nodes.store import WatchedNodes
from devenv.control_plane import ControlPlane
from devenv.kube_api import ApiError, KubeApi

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
QUICK_SECONDS = 2.0
OUR_USER = "system:serviceaccount:cocoon-system:cocoon-node-controller"


@dataclass
class RunningNodes:
    """A running reconciler and what it stands on."""

    client: KubeClient
    reconciler: NodeReconciler
    nodes: WatchedNodes
    tasks: list[asyncio.Task[None]]

    def lead(self) -> None:
        """Begin to write."""
        self.tasks.append(asyncio.create_task(self.reconciler.run()))

    async def lose_leadership(self) -> None:
        """Stop writing, and go on watching."""
        leading = self.tasks.pop()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    async def stop(self) -> None:
        """Stop as a process does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def running_nodes(
    plane: ControlPlane, settings: NodeSettings | None = None, *, leads: bool = True
) -> AsyncIterator[RunningNodes]:
    """The Nodes part of a controller, as `app.py` puts it together, without agents; not leading, it only watches."""
    async with KubeClient(await load_access(kubeconfig=str(plane.kubeconfig("controller")))) as client:
        part = NodeReconciler(client, settings=settings)
        nodes = WatchedNodes(client, part.observe_node)
        part.use_store(nodes)
        running = RunningNodes(client, part, nodes, [asyncio.create_task(nodes.run())])
        if leads:
            running.lead()
        try:
            await nodes.wait_synced()
            yield running
            for task in running.tasks:
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            await running.stop()


@pytest.fixture
def quick_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent counts as silent after two seconds instead of thirty."""
    for module in (claims, roster, reconciler):
        monkeypatch.setattr(module, "CONTACT_SECONDS", QUICK_SECONDS)
    monkeypatch.setattr(reconciler, "_SWEEP_SECONDS", 0.2)


@pytest.fixture
def node_name(unique_name: Callable[[str], str], kube: KubeApi) -> Iterator[str]:
    """A name of this test's own; Node and Lease are removed afterwards."""
    name = unique_name("host")
    yield name
    remove(kube, name)


def remove(kube: KubeApi, name: str) -> None:
    """Remove a Node and its Lease, if they are there."""
    for path in (f"{NODES}/{name}", f"{LEASES}/{name}"):
        with contextlib.suppress(ApiError):
            kube.delete(path)


def find(kube: KubeApi, name: str) -> dict[str, Any]:
    """The Node as the API has it, empty when there is none."""
    return kube.find(f"{NODES}/{name}") or {}


def condition(kube: KubeApi, name: str, kind: str) -> str:
    """Status of a condition, empty when it is absent."""
    for item in find(kube, name).get("status", {}).get("conditions", ()):
        if item["type"] == kind:
            return str(item["status"])
    return ""


def is_ready(kube: KubeApi, name: str) -> bool:
    """Whether the Node is Ready."""
    return condition(kube, name, "Ready") == "True"


def events_about(kube: KubeApi, name: str) -> list[dict[str, Any]]:
    """Events about a Node that are ours: the cluster's own controllers tell of a new Node too, whenever they see it."""
    events = kube.items("/apis/events.k8s.io/v1/namespaces/default/events")
    ours = [event for event in events if event.get("reportingController") == CONTROLLER]
    return [event for event in ours if event["regarding"].get("name") == name]


@pytest.fixture
async def operator(control_plane: ControlPlane) -> AsyncIterator[NodeOperator]:
    """The operations of people, with the controller's rights."""
    async with KubeClient(await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))) as client:
        yield NodeOperator(client)
