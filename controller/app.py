"""The controller put together: what watches, what dials, what writes, and how it all starts and ends.

Why this exists: this is the one place that knows all parts. Each part is given what it needs and knows no other.
"""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from common.http_listener import HttpListener
from common.logging import fields
from common.open_files import raise_open_files_limit
from common.program import StartError, no_stale_ready_file, start_http, stop_signal, write_ready_file
from common.tasks import until_first_ends
from common.tls_files import TlsFiles, TlsFilesError
from common.version import VERSION
from controller.agents.channels import FleetChannels, ListeningRoster
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import AgentSource, EndpointsFile, StaticList
from controller.agents.endpointslices import EndpointSlices
from controller.agents.fleet import AgentFleet
from controller.agents.survey import AgentAnswer, survey_agents
from controller.config import Settings
from controller.deletion.assembly import DeletionParts, DeletionSettings
from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.errors import AccessConfigError
from controller.kube.events import EventRecorder
from controller.kube.leadership import ElectionTimes
from controller.nodes.metrics import EVENTS
from controller.nodes.plan import NodeSettings
from controller.nodes.reconciler import NodeReconciler
from controller.nodes.store import WatchedNodes
from controller.seat_release import backups_in, make_seat_parts, open_registry, refuse_beside_operator
from controller.web.pages import HTTP_CONNECTIONS_DROPPED, routes

if TYPE_CHECKING:
    from controller.seats.registry import Registry

_LOG = logging.getLogger(__name__)
_READY_FILE = "COCOON_NODE_CONTROLLER_READY_FILE"
# Far above the library's defaults: a pass over everything that a thousand streams hold is the longest pause there is.
_GC_THRESHOLDS = (50_000, 50, 100)
_FREEZE_AFTER_SECONDS = 30.0
_FREEZE_GROWTH = 1.1
_READY_POLL_SECONDS = 0.1


async def run(settings: Settings) -> None:
    """Run the controller until SIGTERM or SIGINT. Raises `StartError`; any other error is a fault of ours."""
    raise_open_files_limit()  # each agent is a connection
    stopped = stop_signal()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(no_stale_ready_file(settings.ready_file, _READY_FILE))
        client = await stack.enter_async_context(open_client(settings))
        registry = await stack.enter_async_context(open_registry(settings))
        await refuse_beside_operator(settings, client)
        sources = await stack.enter_async_context(agent_sources(settings, client))
        controller = Controller(settings, client, sources, registry)
        http_address = await controller.listen()
        stack.push_async_callback(controller.http.close)
        _LOG.info("starting", extra=fields(version=VERSION, http=http_address))
        await until_first_ends(
            stopped.wait(),
            controller.watch(),
            controller.deletion.run(),
            controller.release_seats(),
            controller.act(),
            controller.announce(http_address),
        )
        _LOG.info("stopping")


class Controller:
    """All parts of one controller. Its coroutines run until cancelled or until a part breaks."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        sources: Sequence[AgentSource],
        registry: "Registry | None" = None,
    ) -> None:
        """Put the parts together; nothing is asked, dialled or listened on yet. Raises `StartError`."""
        self._settings = settings
        self._events = EventRecorder(client, count=lambda outcome: EVENTS.labels(outcome).inc())
        self.reconciler = NodeReconciler(client, settings=node_settings(settings), events=self._events)
        self.nodes = WatchedNodes(client, self.reconciler.observe_node)
        self.reconciler.use_store(self.nodes)
        roster = ListeningRoster() if settings.audit_only else self.reconciler
        self.fleet = AgentFleet(sources, roster, client_credentials(settings))
        channels = FleetChannels(self.fleet, roster)
        self.deletion = DeletionParts(
            client,
            channels,
            events=self._events,
            settings=deletion_settings(settings),
            backups=backups_in(registry),
        )
        self.seats = make_seat_parts(settings, client, registry, self.deletion, channels, self.fleet, self._events)
        self.http = HttpListener(routes(self.unready_reasons), HTTP_CONNECTIONS_DROPPED.inc)

    async def listen(self) -> str:
        """Serve health, readiness and metrics; return the bound address, empty when that is off."""
        return await start_http(self.http, self._settings.http_listen, "COCOON_NODE_CONTROLLER_HTTP_LISTEN")

    def unready_reasons(self) -> list[str]:
        """One sentence for each thing that is still missing; agents that do not answer are no reason."""
        reasons = self.deletion.unready_reasons()
        elector = self.deletion.elector
        if self._settings.audit_only or elector.leadership.epoch is not None:
            reasons += self.fleet.unready_reasons()
        elif elector.problem or not elector.holder:
            reasons.append(f"leadership: {elector.problem or 'nobody leads'}")
        if self.seats is not None:
            reasons += self.seats.unready_reasons()
        watch = self.nodes.reflector
        if not watch.has_synced:
            reasons.insert(0, f"Nodes: {watch.problem or 'not listed yet'}")
        return reasons

    async def watch(self) -> None:
        """Keep the copy of the cluster's Nodes."""
        await self.nodes.run()

    async def act(self) -> None:
        """Keep Nodes while this process leads; a follower only keeps its copies warm, and an audit only listens."""
        if self._settings.audit_only:
            await until_first_ends(self._events.run(), self.fleet.run())
        leadership = self.deletion.elector.leadership
        while True:
            await leadership.wait_granted()
            await until_first_ends(leadership.wait_revoked(), self.keep_nodes())
            _LOG.warning("not leading any more; Nodes are left to whoever leads")

    async def keep_nodes(self) -> None:
        """Renew leases and write Nodes, and listen to the agents."""
        await until_first_ends(self.reconciler.run(), self._dial())

    async def release_seats(self) -> None:
        """Free and take the seats of suspended VMs, if that is asked for."""
        if self.seats is None:
            await asyncio.Event().wait()
        else:
            await self.seats.run()

    async def announce(self, http_address: str) -> None:
        """Say once that everything is ready, then keep the garbage collector from what is there to stay."""
        gc.set_threshold(*_GC_THRESHOLDS)
        told: list[str] = []
        while reasons := self.unready_reasons():
            if reasons != told:
                _LOG.info("not ready yet", extra=fields(missing="; ".join(reasons)))
                told = reasons
            await asyncio.sleep(_READY_POLL_SECONDS)
        write_ready_file(self._settings.ready_file, {"http": http_address}, _READY_FILE)
        _LOG.info("ready", extra=fields(agents=len(self.fleet.connections)))
        gc.collect()
        gc.freeze()
        await self._keep_frozen()

    async def _keep_frozen(self) -> None:
        """Freeze again when many streams were opened: after a start, and after each change of leader."""
        frozen = 0
        while True:
            await asyncio.sleep(_FREEZE_AFTER_SECONDS)
            connected = self.fleet.connected_count()
            if connected > frozen * _FREEZE_GROWTH:
                # Without a pass over all of it, which is a pause.
                gc.freeze()
                frozen = connected
            frozen = min(frozen, connected)

    async def _dial(self) -> None:
        # Not before the Nodes are known: a report is only as good as the Node it is compared with.
        await self.nodes.wait_synced()
        await self.fleet.run()


@contextlib.asynccontextmanager
async def open_client(settings: Settings) -> AsyncIterator[KubeClient]:
    """A client of the cluster that the settings name. Raises `StartError`."""
    try:
        access = await load_access(
            kubeconfig=settings.kubeconfig, context=settings.kube_context, in_cluster=settings.in_cluster
        )
    except AccessConfigError as error:
        raise StartError(str(error), status=2) from None
    async with KubeClient(access) as client:
        yield client


@contextlib.asynccontextmanager
async def agent_sources(settings: Settings, client: KubeClient) -> AsyncIterator[list[AgentSource]]:
    """Every way of finding agents that the settings name; those in the cluster are read by `client`."""
    sources: list[AgentSource] = []
    if settings.agents is not None:
        sources.append(StaticList(settings.agents))
    if settings.agents_file is not None:
        sources.append(EndpointsFile(settings.agents_file))
    if settings.agents_service is not None:
        sources.append(EndpointSlices(client, *settings.agents_service, settings.agents_port_name or ""))
    if settings.agents_dns is None:
        yield sources
        return
    from controller.agents.dns_names import DnsNames, make_resolver

    resolver = make_resolver(settings.dns_server or "")
    try:
        yield [*sources, DnsNames(settings.agents_dns, resolver, settings.dns_refresh_seconds)]
    finally:
        await resolver.close()


async def ask_agents(
    settings: Settings, client: KubeClient, wait_seconds: float, *, only: str = ""
) -> tuple[list[AgentAnswer], list[str]]:
    """Ask every agent once, or those that may speak for the node `only`; return answers and what was not found.

    Raises `StartError`.
    """
    async with agent_sources(settings, client) as sources:
        return await survey_agents(sources, client_credentials(settings), wait_seconds, only=only)


def client_credentials(settings: Settings) -> ClientCredentials | None:
    """The certificate for calling agents, None for plain text. Raises `StartError`."""
    if settings.tls_ca_file is None or settings.tls_cert_file is None or settings.tls_key_file is None:
        return None
    try:
        return ClientCredentials(TlsFiles(settings.tls_ca_file, settings.tls_cert_file, settings.tls_key_file))
    except TlsFilesError as error:
        raise StartError(f"TLS files: {error}", status=2) from None


def node_settings(settings: Settings) -> NodeSettings:
    """What the plan of Nodes looks at."""
    return NodeSettings(lifecycle=settings.lifecycle, adopt=settings.adopt_nodes, taint=settings.registration_taint)


def deletion_settings(settings: Settings) -> DeletionSettings:
    """What pod deletion looks at."""
    return DeletionSettings(
        lease_namespace=settings.lease_namespace,
        lease_name=settings.lease_name,
        times=ElectionTimes(
            duration=settings.lease_duration_seconds,
            renew_deadline=settings.renew_deadline_seconds,
            retry=settings.retry_period_seconds,
        ),
        trusted_prefixes=settings.trusted_vm_prefixes,
        audit_only=settings.audit_only,
    )
