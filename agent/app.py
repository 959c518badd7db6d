"""The agent put together: what reads, what answers, and how it starts and ends.

Why this exists: this is the one place that knows all parts. Each part is given what it needs and knows no other.
"""

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from agent.config import Settings
from agent.resources.facts import first_ipv4_address, read_facts
from agent.resources.message import report_message
from agent.resources.metrics import ResourceMetrics
from agent.resources.monitor import HostMonitor, ProbesFailedError, host_report
from agent.resources.reader import ResourceReader, StorageInputs
from agent.resources.report import HostReport, with_transition_times
from agent.resources.service import SERVICE_NAME, NodeResourcesService
from agent.rpc.authorization import Authorization
from agent.rpc.connections import ConnectionMetrics, connections_allowed
from agent.rpc.guard import CallGuard
from agent.rpc.metrics import CallMetrics, MetricsPage
from agent.rpc.server import ListenError, RpcServer
from agent.rpc.tls import ReloadingCertificates
from agent.snapshots.assembly import SnapshotParts
from agent.snapshots.errors import LedgerUnavailableError, StoreUnavailableError
from agent.snapshots.service import SERVICE_NAME as SNAPSHOT_SERVICE_NAME
from agent.supervisor import notify_supervisor
from cocoonstack.node.v1 import node_resources_pb2 as pb
from common.http_listener import HttpListener, Page, health_routes
from common.logging import fields
from common.open_files import raise_open_files_limit
from common.program import StartError, no_stale_ready_file, start_http, stop_signal, write_ready_file
from common.tasks import end_tasks, until_first_ends
from common.tls_files import TlsFiles, TlsFilesError
from common.version import VERSION

_LOG = logging.getLogger(__name__)
_READY_FILE = "COCOON_NODE_READY_FILE"
# Far above the library's defaults: a pass over everything allocated at start is the longest pause there is.
_GC_THRESHOLDS = (20_000, 20, 50)


def host_problems(settings: Settings) -> list[str]:
    """Return what of this host contradicts the settings, as sentences that name variable, value and rule."""
    problems = []
    if settings.node_storage_bytes is None and not os.path.isdir(settings.root_dir):
        problems.append(
            f'COCOON_ROOT_DIR="{settings.root_dir}": must be an existing directory; is its disk mounted?'
            " (VK_NODE_STORAGE sets the storage without it)"
        )
    if node_ip(settings) is None:
        problems.append("VK_NODE_IP: must be set, because no interface that is up has a non-loopback IPv4 address")
    return problems


def node_ip(settings: Settings) -> str | None:
    """Return the Node's InternalIP: the configured one, or this host's first."""
    return settings.node_ip or first_ipv4_address()


def read_host_once(settings: Settings) -> HostReport:
    """Read the host once, without a server; raises `StartError` when a resource cannot be read."""
    facts = read_facts(settings.procfs, settings.sysfs, settings.etcfs)
    reader = ResourceReader(settings)
    reader.read_fixed()
    reader.read_storage(StorageInputs())
    resources = reader.resources()
    if resources is None:
        raise StartError("\n".join(str(problem) for problem in reader.problems))
    report = host_report(settings, facts, node_ip(settings) or "", resources, reader.problems)
    return replace(report, conditions=with_transition_times(report.conditions, (), time.time()))


def probe_once(settings: Settings) -> pb.NodeResourcesReport:
    """Return the message that would be served after one reading; raises `StartError`."""
    return report_message(read_host_once(settings), instance_id="", revision=0)


async def serve(settings: Settings) -> None:
    """Run the agent until SIGTERM or SIGINT; raises `StartError`."""
    if problems := host_problems(settings):
        raise StartError("\n".join(problems), status=2)
    stopped = stop_signal()
    with no_stale_ready_file(settings.ready_file, _READY_FILE):
        await _serve_until(stopped, Agent(settings))


async def _serve_until(stopped: asyncio.Event, agent: "Agent") -> None:
    async with agent.running():
        await until_first_ends(stopped.wait(), agent.broken())
        notify_supervisor("STOPPING=1")
        _LOG.info("stopping")


class Agent:
    """All parts of one agent; `running` holds them up, `broken` ends with the error of the first that breaks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._snapshots = SnapshotParts(settings)
        self._tls = _certificates(settings)
        self._calls = CallMetrics()
        authorization = Authorization(
            settings.tls_controller_names, settings.tls_viewer_names, mutual_tls=self._tls is not None
        )
        connections = connections_allowed(settings.max_connections, len(settings.listen), raise_open_files_limit())
        if connections < settings.max_connections:
            _LOG.warning("fewer connections than set: raise the limit of open files", extra=fields(limit=connections))
        self._server = RpcServer(CallGuard(authorization, self._calls), connections)
        self._connections = ConnectionMetrics(connections, lambda: self._server.restarts)
        self._resources = NodeResourcesService()
        self._server.add_service(SERVICE_NAME, self._resources.handlers())
        self._server.add_service(SNAPSHOT_SERVICE_NAME, self._snapshots.service.handlers())
        facts = read_facts(settings.procfs, settings.sysfs, settings.etcfs)
        self._monitor = HostMonitor(
            settings,
            facts,
            node_ip(settings) or "",
            self._resources,
            self._snapshots.view,
            more_conditions=self._tls.conditions if self._tls is not None else tuple,
        )
        self._metrics = MetricsPage()
        self._metrics.add(self._calls)
        self._metrics.add(self._connections)
        self._metrics.add(ResourceMetrics(self._resources, self._monitor))
        self._metrics.add(self._snapshots.metrics)
        if self._tls is not None:
            self._metrics.add(self._tls)
        self._http = HttpListener(
            health_routes(self._unready_reasons, self._metrics_page), self._calls.http_connection_dropped
        )
        self._tasks: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen and read the host while the block runs; raises `StartError` when an address is not free."""
        try:
            addresses, http_address = await self._listen()
            self._tasks += [
                asyncio.create_task(self._read_host(addresses, http_address)),
                asyncio.create_task(self._resources.beat()),
                asyncio.create_task(self._keep_serving()),
            ]
            if self._tls is not None:
                self._tasks.append(asyncio.create_task(self._tls.follow(self._monitor.refresh_soon)))
            yield
        finally:
            await end_tasks(self._tasks)
            self._resources.close()
            self._snapshots.end_watches()
            await self._server.stop()
            await self._snapshots.stop()
            await self._http.close()

    async def broken(self) -> None:
        """Wait for the first task that ends, which none does by itself, and raise its error."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def _listen(self) -> tuple[tuple[str, ...], str]:
        try:
            credentials = self._tls.credentials() if self._tls else None
            addresses = await self._server.start(self._settings.listen, credentials)
            self._connections.listen(addresses)
        except TlsFilesError as error:
            raise StartError(f"COCOON_NODE_TLS_CERT_FILE, _KEY_FILE, _CLIENT_CA_FILE: {error}", status=2) from None
        except ListenError as error:
            raise StartError(f"COCOON_NODE_LISTEN: {error}") from None
        http_address = await start_http(self._http, self._settings.http_listen, "COCOON_NODE_HTTP_LISTEN")
        _LOG.info("listening", extra=fields(addresses=list(addresses), http=http_address, version=VERSION))
        return addresses, http_address

    async def _keep_serving(self) -> None:
        try:
            await self._server.keep_serving()
        except ListenError as error:
            raise StartError(f"COCOON_NODE_LISTEN: {error}") from None

    async def _read_host(self, addresses: tuple[str, ...], http_address: str) -> None:
        try:
            await self._snapshots.start()
        except (LedgerUnavailableError, StoreUnavailableError) as error:
            raise StartError(str(error)) from None
        try:
            await self._monitor.first_report()
        except ProbesFailedError as error:
            raise StartError(f"the host could not be read: {error}") from None
        await self._server.set_serving()
        ready = {"addresses": list(addresses), "http": http_address}
        write_ready_file(self._settings.ready_file, ready, _READY_FILE)
        notify_supervisor("READY=1")
        _LOG.info("serving", extra=fields(node=self._settings.node_name, instance=self._resources.instance_id))
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.freeze()
        try:
            await asyncio.gather(self._snapshots.opened(), self._monitor.run())
        except (LedgerUnavailableError, StoreUnavailableError) as error:
            raise StartError(str(error)) from None

    def _unready_reasons(self) -> list[str]:
        return ["the host has not been read yet"] if self._resources.report is None else []

    async def _metrics_page(self) -> Page:
        return Page(200, await self._metrics.text(), self._metrics.content_type)


def _certificates(settings: Settings) -> ReloadingCertificates | None:
    if settings.tls_cert_file is None or settings.tls_key_file is None or settings.tls_client_ca_file is None:
        return None
    files = TlsFiles(settings.tls_client_ca_file, settings.tls_cert_file, settings.tls_key_file)
    return ReloadingCertificates(files, settings.node_name)
