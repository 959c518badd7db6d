"""All connections: started and ended as agents come and go, and watched for silence in one sweep.

Why this exists: discovery says which agents there are, connections speak to one each; something has to own the tasks so
that none outlives the process, and one timer has to do for a thousand streams.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Collection, Sequence

import grpc.aio

from common.logging import fields
from common.tasks import end_tasks
from controller.agents.connection import AgentConnection, StreamLimits
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import AgentSource
from controller.agents.endpoints import AgentEndpoint
from controller.agents.metrics import AGENTS, DISCOVERY_FAILING, VERSION_SKEW
from controller.nodes.report import AgentObserver
from controller.nodes.skew import Skew

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.0
_FILES_SECONDS = 10.0
# So many dials a second at a start: a thousand handshakes at once would starve the leases.
_DIALS_PER_SECOND = 400.0


class AgentFleet:
    """The supervised streams to every agent that any source names.

    `run` lasts until cancelled and leaves no task and no channel behind. An endpoint that several sources name is
    dialled once; it is given up when the last source stops naming it.
    """

    def __init__(
        self,
        sources: Sequence[AgentSource],
        observer: AgentObserver,
        credentials: ClientCredentials | None = None,
        limits: StreamLimits | None = None,
    ) -> None:
        """Nothing is looked up or dialled before `run`."""
        self.sources = tuple(sources)
        self._observer = observer
        self._credentials = credentials
        self._limits = limits or StreamLimits()
        self._named: dict[str, tuple[AgentEndpoint, ...]] = {}
        self._connections: dict[tuple[str, str], AgentConnection] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None

    @property
    def connections(self) -> Collection[AgentConnection]:
        """Every connection, in no order; do not keep it across an await."""
        return self._connections.values()

    def connected_count(self) -> int:
        """How many agents answer right now."""
        return sum(connection.connected for connection in self._connections.values())

    def channel(self, address: str, node_name: str) -> grpc.aio.Channel | None:
        """Return the open connection to the agent at this address if it speaks as `node_name`, else None."""
        for key in ((address, node_name), (address, "")):
            connection = self._connections.get(key)
            if connection is not None and connection.channel is not None and connection.node_name == node_name:
                return connection.channel
        return None

    def all_tried(self) -> bool:
        """Whether every source has named its agents and each of these has answered, or failed to, since the start."""
        return all(each.is_tried for each in self._connections.values()) and not self.unready_reasons()

    def unready_reasons(self) -> list[str]:
        """Say what is missing until every source has answered once; empty when nothing is."""
        return [
            f"agents from {source.name}: {source.problem or 'not looked up yet'}"
            for source in self.sources
            if not source.answered
        ]

    async def run(self) -> None:
        """Follow the sources and keep the streams until cancelled; an error of ours ends it."""
        self._failed = asyncio.get_running_loop().create_future()
        tasks = [asyncio.create_task(self._follow(source), name=f"source {source.name}") for source in self.sources]
        tasks.append(asyncio.create_task(self._sweep(), name="silence sweep"))
        if self._credentials is not None:
            tasks.append(asyncio.create_task(_follow_files(self._credentials), name="source TLS files"))
        try:
            await asyncio.wait([*tasks, self._failed], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._failed.done():
                self._failed.result()
        finally:
            self._failed.cancel()
            await end_tasks([*tasks, *self._tasks.values(), *self._ending])
            self._tasks.clear()
            self._connections.clear()

    def set_endpoints(self, source_name: str, endpoints: Sequence[AgentEndpoint]) -> None:
        """Take over what one source names now; starts and ends connections at once."""
        self._named[source_name] = tuple(endpoints)
        wanted = {(e.address, e.node_name): e for named in self._named.values() for e in named}
        gone = [key for key in self._connections if key not in wanted]
        new = [key for key in wanted if key not in self._connections]
        # Ended first, so that an agent that moved to another address is never there twice.
        for key in gone:
            self._stop(key)
        for number, key in enumerate(new):
            self._start(wanted[key], number / _DIALS_PER_SECOND)
        if gone or new:
            log.info(
                "agents changed", extra=fields(source=source_name, added=len(new), removed=len(gone), total=len(wanted))
            )

    def _start(self, endpoint: AgentEndpoint, delay_seconds: float) -> None:
        key = (endpoint.address, endpoint.node_name)
        connection = AgentConnection(endpoint, self._observer, self._credentials, self._limits)
        self._connections[key] = connection
        if endpoint.node_name:
            self._observer.expect_agent(endpoint.address, endpoint.node_name)
        task = asyncio.create_task(_run_after(delay_seconds, connection), name=f"agent {endpoint.address}")
        self._tasks[key] = task
        task.add_done_callback(self._ended)

    def _stop(self, key: tuple[str, str]) -> None:
        connection, task = self._connections.pop(key), self._tasks.pop(key)
        task.cancel()
        self._ending.add(task)
        if connection.node_name:
            self._observer.forget_agent(connection.endpoint.address, connection.node_name)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Pass an error in a connection on: it is a fault of ours, and a silent dead stream would hide it."""
        self._ending.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(task.exception())  # type: ignore[arg-type]

    async def _follow(self, source: AgentSource) -> None:
        await source.run(lambda endpoints: self.set_endpoints(source.name, endpoints))

    async def _sweep(self) -> None:
        """End every attempt whose deadline has passed: one timer for all streams."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311 - keeps processes apart only
            now = loop.time()
            for connection in self._connections.values():
                if connection.deadline < now:
                    connection.expire()
            self._measure()

    def _measure(self) -> None:
        connections = self._connections.values()
        connected = self.connected_count()
        reporting = sum(connection.connected and not connection.problem for connection in connections)
        AGENTS.labels("reporting").set(reporting)
        AGENTS.labels("refused").set(connected - reporting)
        AGENTS.labels("lost").set(len(connections) - connected)
        skews = Counter(connection.skew for connection in connections if connection.connected)
        for skew in Skew:
            VERSION_SKEW.labels(skew.value).set(skews[skew])
        for source in self.sources:
            DISCOVERY_FAILING.labels(source.name).set(bool(source.problem))


async def _follow_files(credentials: ClientCredentials) -> None:
    """Look at the TLS files now and then: in a quiet fleet nobody dials, and a broken file has to show all the same."""
    while True:
        await asyncio.to_thread(credentials.current)
        await asyncio.sleep(_FILES_SECONDS)


async def _run_after(delay_seconds: float, connection: AgentConnection) -> None:
    if delay_seconds:
        await asyncio.sleep(delay_seconds)
    await connection.run()
