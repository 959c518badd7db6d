"""The Nodes of the cluster as last seen, fed by a watch or, where there is none, read when asked."""

from collections.abc import Callable
from typing import Protocol

from controller.kube.objects import Change, ChangeKind, WatchTransport
from controller.kube.reflector import Reflector
from controller.nodes.live import NodeObject, live_node
from controller.nodes.model import LiveNode
from controller.nodes.steps import NODES_PATH


class NodeStore(Protocol):
    """Where the reconciler gets Nodes from without asking the API each time."""

    async def wait_synced(self) -> None:
        """Return once every Node is known."""

    def get(self, name: str) -> LiveNode | None:
        """The Node as last seen, None when there is none."""


class WatchedNodes:
    """A NodeStore kept by list and watch. `on_change` hears the name and the new state (None: deleted)."""

    def __init__(self, transport: WatchTransport, on_change: Callable[[str, LiveNode | None], None]) -> None:
        """Nothing is read before `run`."""
        self._on_change = on_change
        self.reflector: Reflector[NodeObject] = Reflector(transport, NODES_PATH, NodeObject, self._hear)

    async def run(self) -> None:
        """List and watch until cancelled."""
        await self.reflector.run()

    async def wait_synced(self) -> None:
        """Return once the first whole list has arrived."""
        await self.reflector.wait_synced()

    def get(self, name: str) -> LiveNode | None:
        """The Node as last seen."""
        item = self.reflector.items.get(name)
        return live_node(item) if item else None

    def _hear(self, change: Change[NodeObject]) -> None:
        self._on_change(change.key, None if change.kind is ChangeKind.DELETED else live_node(change.item))
