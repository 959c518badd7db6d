"""One supervised stream to one agent: dialled, read, given up when silent, dialled again with backoff.

Why this exists: everything the controller knows about a host comes over this stream, and there are a thousand of them
in one process. So a connection is one task and no timer: it writes down when it would count as silent, and the fleet
looks at all of these deadlines in one sweep. Every call is cancelled and every channel closed when an attempt ends,
whatever ended it: gRPC keeps calls that nobody ends.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Final

import grpc
import grpc.aio

from cocoonstack.node.v1 import node_resources_pb2 as pb
from common.logging import fields
from common.version import VERSION
from controller.agents.credentials import ClientCredentials
from controller.agents.decode import IdentityMismatchError, ReportError, decode_message
from controller.agents.endpoints import AgentEndpoint, plain_text_problem
from controller.agents.losses import StreamError, stream_error
from controller.agents.metrics import REPORTS, STREAM_LOSSES
from controller.nodes.report import AgentObserver
from controller.nodes.skew import Skew, skew_of

log = logging.getLogger(__name__)

_NOT_YET: Final = "NotYetConnected"
_WATCH: Final = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"
_REQUEST: Final = pb.WatchNodeResourcesRequest().SerializeToString()
_MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Times of a stream in seconds.

    The longest pause between two attempts plus the longest attempt stays under 15 s, because an agent that is back must
    be Ready again within that time; a refused connection on a host that is down costs next to nothing.
    """

    silence: float = 30.0
    first_message: float = 5.0
    first_backoff: float = 1.0
    max_backoff: float = 8.0
    refused_backoff: float = 60.0


class AgentConnection:
    """The stream to one endpoint and what is known from it.

    `node_name` is the endpoint's, or the one the agent reported when the endpoint has none. `deadline` is the loop time
    at which the running attempt counts as silent. `problem` is why there is no good stream or report, else empty.
    `channel` is the connection for other calls, from the first good report until the stream ends, else None. `skew` is
    how the version of the last good report compares to ours.
    """

    __slots__ = (
        "_call",
        "_credentials",
        "_expired",
        "_failures",
        "_limits",
        "_loop",
        "_observer",
        "channel",
        "connected",
        "deadline",
        "endpoint",
        "last_heard_at",
        "node_name",
        "problem",
        "reason",
        "reports",
        "skew",
    )

    def __init__(
        self,
        endpoint: AgentEndpoint,
        observer: AgentObserver,
        credentials: ClientCredentials | None,
        limits: StreamLimits,
    ) -> None:
        """Prepare; nothing is dialled before `run`."""
        self.endpoint = endpoint
        self.node_name = endpoint.node_name
        self.connected = False
        self.channel: grpc.aio.Channel | None = None
        self.reason = _NOT_YET
        self.problem = "not connected yet"
        self.last_heard_at = 0.0
        self.deadline = float("inf")
        self.reports = 0
        self.skew = Skew.UNKNOWN
        self._observer = observer
        self._credentials = credentials
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._call: grpc.aio.UnaryStreamCall[bytes, bytes] | None = None
        self._expired = False
        self._failures = 0

    @property
    def is_tried(self) -> bool:
        """Whether the agent has answered, or failed to, since the start."""
        return self.reason != _NOT_YET

    def expire(self) -> None:
        """Give up the running attempt as silent; called by the fleet once `deadline` has passed."""
        self.deadline = float("inf")
        if self._call is not None:
            self._expired = True
            self._call.cancel()

    async def run(self) -> None:
        """Keep a stream open until cancelled."""
        while True:
            try:
                await self._attempt()
                error = StreamError("StreamEnded", "the agent ended the stream")
            except StreamError as failure:
                error = failure
            self._lost(error)
            await self._pause(error)

    async def _attempt(self) -> None:
        """Dial once and read until the stream ends. Raises `StreamError`, also for a stream given up as silent."""
        tls = self._credentials is not None
        if problem := plain_text_problem(self.endpoint, tls):
            raise StreamError("AddressRefused", problem, refused=True)
        channel = await self._open_channel()
        self._expired = False
        try:
            # Raw bytes: decoding is ours, so that what cannot be decoded is a refusal and not a library's traceback.
            method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(_WATCH)
            self._call = call = method(_REQUEST)
            self.deadline = self._loop.time() + self._limits.first_message
            await self._read(call, channel)
        except grpc.aio.AioRpcError as error:
            raise stream_error(error.code(), error.details(), self._own_problem()) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._expired or (task is not None and task.cancelling()):
                raise
            raise StreamError("Silent", "nothing was heard in time") from None
        finally:
            self.deadline = float("inf")
            self.channel = None
            call_to_end, self._call = self._call, None
            if call_to_end is not None:
                call_to_end.cancel()
            await channel.close()

    def _own_problem(self) -> str:
        return self._credentials.own_problem() if self._credentials is not None else ""

    async def _open_channel(self) -> grpc.aio.Channel:
        target, options = self.endpoint.grpc_target(), _channel_options(self._limits)
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        credentials = await asyncio.to_thread(self._credentials.current)
        options.append(("grpc.ssl_target_name_override", self.endpoint.node_name))
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def _read(self, call: "grpc.aio.UnaryStreamCall[bytes, bytes]", channel: grpc.aio.Channel) -> None:
        reports_before = self.reports
        while True:
            payload = await call.read()
            if not isinstance(payload, bytes):
                # EOF; asking for the code raises what a broken stream ended with.
                code = await call.code()
                if self._expired:
                    raise StreamError("Silent", "nothing was heard in time")
                if code is not grpc.StatusCode.OK:
                    raise stream_error(code, await call.details(), self._own_problem())
                return
            now = self._loop.time()
            self.last_heard_at = now
            self.deadline = now + self._limits.silence
            self._take(payload)
            if self.reports != reports_before:
                self.channel = channel

    def _take(self, payload: bytes) -> None:
        """Pass one message on. A refused report leaves the stream open: the agent may mend it, the last good stays."""
        agent = self.endpoint.address
        try:
            report = decode_message(payload, self.endpoint.node_name)
        except IdentityMismatchError as error:
            raise StreamError(error.reason, str(error), refused=True) from error
        except ReportError as error:
            self._refuse(error)
            return
        if report is not None:
            self.node_name = report.node_name
            self.reports += 1
            REPORTS.labels("taken").inc()
            self._good()
            self._note_version(report.agent_version)
            self._observer.observe_report(agent, report)
        elif self.node_name:
            self._observer.observe_contact(agent, self.node_name)

    def _good(self) -> None:
        self._failures = 0
        if not self.connected or self.problem:
            log.info("agent connected", extra=self._fields())
        self.connected = True
        self.reason = self.problem = ""

    def _note_version(self, version: str) -> None:
        """Tell once that the agent's version is another than ours; within a minor version that is as it should be."""
        skew = skew_of(version)
        if skew is not self.skew and skew is not Skew.SAME:
            level = logging.WARNING if skew.is_too_far else logging.INFO
            log.log(
                level, "agent of another version", extra=self._fields(version=version, ours=VERSION, skew=skew.value)
            )
        self.skew = skew

    def _refuse(self, error: ReportError) -> None:
        REPORTS.labels("refused").inc()
        if self.problem != str(error):
            log.warning("report refused, the last good one is kept", extra=self._fields(problem=str(error)))
            self._observer.observe_refusal(self.endpoint.address, self.node_name, error.reason, str(error))
        self.connected = True
        self.reason, self.problem = error.reason, str(error)
        if self.node_name:
            self._observer.observe_contact(self.endpoint.address, self.node_name)

    def _lost(self, error: StreamError) -> None:
        """Tell a loss once; attempts that fail the same way again are silent."""
        STREAM_LOSSES.labels(error.reason).inc()
        was_connected, before = self.connected, self.reason
        self.connected = False
        self.reason, self.problem = error.reason, str(error) or error.reason
        if was_connected or before != error.reason:
            log.warning("agent lost", extra=self._fields(reason=error.reason, problem=self.problem))
            if error.refused:
                self._observer.observe_refusal(self.endpoint.address, self.node_name, error.reason, self.problem)
        if self.node_name:
            self._observer.observe_loss(self.endpoint.address, self.node_name, error.reason)

    async def _pause(self, error: StreamError) -> None:
        """Wait with jitter before the next attempt."""
        limits = self._limits
        ceiling = min(limits.max_backoff, limits.first_backoff * 2.0 ** min(self._failures, 10))
        if error.refused:
            ceiling = limits.refused_backoff
        self._failures += 1
        await asyncio.sleep(ceiling * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load only

    def _fields(self, **more: object) -> dict[str, dict[str, object]]:
        return fields(node=self.node_name, address=self.endpoint.address, **more)


def _channel_options(limits: StreamLimits) -> list[tuple[str, str | int]]:
    return [
        # A half-open connection is noticed within 30 s; the agent accepts pings every 5 s.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Without it an unanswered ping is waited for a minute, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # It measures the bandwidth by a ping after each message that arrives, which nearly doubles what a heartbeat
        # costs here and there; answers of a few KiB need no larger window.
        ("grpc.http2.bdp_probe", 0),
        # An attempt is one connect; the backoff between attempts is ours, so nothing may wait inside gRPC.
        ("grpc.min_reconnect_backoff_ms", int(limits.first_message * 1000)),
        ("grpc.enable_retries", 0),
        # A connection shared with an attempt that is being closed would bring its backoff along.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.service_config_disable_resolution", 1),
        # Per-channel debugging records that nobody can read here: 4 KiB of every stream.
        ("grpc.enable_channelz", 0),
        ("grpc.max_channel_trace_event_memory_per_node", 0),
        # Agents are never behind the proxy that the environment may name for other purposes.
        ("grpc.enable_http_proxy", 0),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.primary_user_agent", f"cocoon-node-controller/{VERSION}"),
    ]
