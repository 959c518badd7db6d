"""The agents behind a Service, from its EndpointSlices: each endpoint comes with the node it runs on."""

import asyncio
from collections.abc import Iterable

import msgspec

from common.addresses import join_address
from common.kubernetes_names import is_node_name
from common.tasks import until_first_ends
from controller.agents.discovery import Publish
from controller.agents.endpoints import DEFAULT_PORT, AgentEndpoint
from controller.kube.objects import Change, Metadata, WatchTransport
from controller.kube.reflector import Reflector

# An endpoint that moves between two slices is gone for an instant: its stream must not be dropped for that.
_SETTLE_SECONDS = 0.2


class _Conditions(msgspec.Struct, frozen=True, gc=False):
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(msgspec.Struct, frozen=True, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions = _Conditions()
    node_name: str | None = None


class _Port(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    port: int | None = None


class EndpointSlice(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an EndpointSlice that tell where agents are."""

    metadata: Metadata
    address_type: str = ""
    endpoints: tuple[_Endpoint, ...] | None = None
    ports: tuple[_Port, ...] | None = None


class EndpointSlices:
    """A source of agents: the endpoints of `namespace/service`, followed by list and watch."""

    def __init__(self, transport: WatchTransport, namespace: str, service: str, port_name: str = "") -> None:
        """Nothing is asked before `run`; `port_name` empty takes the slices' first port."""
        self.name = f"EndpointSlices of {namespace}/{service}"
        self._port_name = port_name
        self._changed = asyncio.Event()
        self._reflector = Reflector(
            transport,
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            EndpointSlice,
            self._note_change,
            query={"labelSelector": f"kubernetes.io/service-name={service}"},
        )

    @property
    def problem(self) -> str:
        """Why the slices cannot be followed, or empty."""
        return self._reflector.problem

    @property
    def answered(self) -> bool:
        """Whether the slices have been listed once."""
        return self._reflector.has_synced

    async def run(self, publish: Publish) -> None:
        """Publish the endpoints now and whenever they have changed."""
        await until_first_ends(self._reflector.run(), self._publish(publish))

    async def _publish(self, publish: Publish) -> None:
        await self._reflector.wait_synced()
        published: tuple[AgentEndpoint, ...] | None = None
        while True:
            found = agent_endpoints(self._reflector.items.values(), self._port_name, self.name)
            if found != published:
                publish(found)
                published = found
            self._changed.clear()
            await self._changed.wait()
            await asyncio.sleep(_SETTLE_SECONDS)

    def _note_change(self, _: Change[EndpointSlice]) -> None:
        self._changed.set()


def agent_endpoints(slices: Iterable[EndpointSlice], port_name: str, source: str) -> tuple[AgentEndpoint, ...]:
    """Return one endpoint per node and agent.

    An agent that is leaving counts only while nothing else is there for its node, an IPv6 address only while its node
    has no IPv4 one (a dual-stack Service lists every agent twice). Two addresses of one kind stay both: which of two
    agents may speak for a node is not decided by the order of a list. Readiness is not asked: the stream tells.
    """
    best: dict[str, tuple[tuple[bool, bool], set[str]]] = {}
    for part in slices:
        port = _port(part.ports or (), port_name)
        if port is None or part.address_type not in ("IPv4", "IPv6"):
            continue
        for endpoint in part.endpoints or ():
            name, conditions = endpoint.node_name or "", endpoint.conditions
            if not endpoint.addresses or not is_node_name(name) or _is_gone(conditions):
                continue
            rank = (conditions.terminating is True, part.address_type == "IPv6")
            address = join_address(endpoint.addresses[0], port)
            known = best.get(name)
            if known is None or rank < known[0]:
                best[name] = (rank, {address})
            elif rank == known[0]:
                known[1].add(address)
    return tuple(sorted(AgentEndpoint(name, address, source) for name, (_, found) in best.items() for address in found))


def _is_gone(conditions: _Conditions) -> bool:
    return conditions.terminating is True and conditions.serving is False


def _port(ports: Iterable[_Port], name: str) -> int | None:
    for port in ports:
        if not name or port.name == name:
            return port.port or DEFAULT_PORT
    return None
