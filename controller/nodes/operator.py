"""Reads what the operations are made from and carries them out, for the commands of people."""

import asyncio
from collections.abc import Awaitable, Callable

from controller.kube.client import KubeClient
from controller.kube.errors import Conflict, NotFound
from controller.nodes.live import NodeObject, live_node, parse_node
from controller.nodes.model import LiveNode
from controller.nodes.operations import Done, ForgetFacts, Operation, accept, forget, prune
from controller.nodes.steps import NODES_PATH, Step, lease_path
from controller.nodes.writer import NodeWriter, NotConvergedError

_ROUNDS = 12
_PAUSE_SECONDS = 0.2


class NodeOperator:
    """Each operation once as a plan (`plan_…`) and once for real. All raise KubeError."""

    def __init__(self, client: KubeClient) -> None:
        """Reads and writes through `client`."""
        self._client = client
        self._writer = NodeWriter(client)

    async def read(self, name: str) -> LiveNode | None:
        """The Node as the API has it now."""
        return await self._writer.read(name)

    async def plan_accept(self, name: str, machine_id: str) -> Operation:
        """What `accept` would send."""
        return accept(name, await self.read(name), machine_id)

    async def accept(self, name: str, machine_id: str) -> Done:
        """Let the machine with this id speak for the Node."""
        return await self._repeat(name, lambda: self.plan_accept(name, machine_id))

    async def plan_forget(self, name: str, *, agent_answers: bool) -> Operation:
        """What `forget` would send; `agent_answers` tells whether the Node's agent was just reached."""
        try:
            await self._client.get_bytes(lease_path(name))
            has_lease = True
        except NotFound:
            has_lease = False
        return forget(ForgetFacts(name, await self.read(name), has_lease, agent_answers))

    async def forget(self, name: str, *, agent_answers: bool) -> Done:
        """Remove the Node and its Lease."""
        operation = await self.plan_forget(name, agent_answers=agent_answers)
        sent: list[Step] = []
        for step in operation.steps:
            try:
                await self._writer.send(step)
            except NotFound:
                # The garbage collector removes a Lease with its Node.
                continue
            sent.append(step)
        return Done(operation, tuple(sent))

    async def plan_prune(self, name: str) -> Operation:
        """What `prune` would send first; giving up the managed fields follows when nothing else is left."""
        return prune(name, await self.read(name))

    async def prune(self, name: str) -> Done:
        """Take everything of ours off the Node, but for values that others rely on."""
        return await self._repeat(name, lambda: self.plan_prune(name))

    async def written_nodes(self) -> list[str]:
        """Names of all Nodes that carry anything of ours, for `prune` of a whole cluster."""
        nodes = map(live_node, await self._client.list_objects(NODES_PATH, NodeObject))
        return sorted(live.name for live in nodes if prune(live.name, live).steps)

    async def _repeat(self, name: str, make: Callable[[], Awaitable[Operation]]) -> Done:
        """Make the operation, send its first step, and again, until nothing is left of it."""
        sent: list[Step] = []
        for _ in range(_ROUNDS):
            operation = await make()
            if not operation.steps:
                return Done(operation, tuple(sent))
            try:
                parse_node(await self._writer.send(operation.steps[0]))
            except Conflict:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            sent.append(operation.steps[0])
        raise NotConvergedError(f"Node {name} keeps changing; try again")
