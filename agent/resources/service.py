"""The gRPC service NodeResources: the report, kept as encoded bytes until something changes.

Why this exists: a fleet asks far more often than a host changes. The report is encoded once, and Get and every Watch
send those same bytes; a watch that reads slowly gets the newest report, never a queue of old ones.
"""

from __future__ import annotations  # grpc's classes take type arguments in stubs only

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping

import grpc

from agent.resources.message import report_message
from agent.resources.report import HostReport
from agent.rpc.errors import ApiError
from cocoonstack.node.v1 import node_resources_pb2 as pb

SERVICE_NAME = "cocoonstack.node.v1.NodeResources"
HEARTBEAT_SECONDS = 10.0


class NodeResourcesService:
    """Publishes reports and answers both calls; `beat` has to run as a task while the server does."""

    def __init__(self, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self.instance_id = str(uuid.uuid4())
        self.revision = 0
        self.report: HostReport | None = None
        self.watches = 0
        self._heartbeat_seconds = heartbeat_seconds
        self._encoded = b""
        self._woken: asyncio.Future[None] | None = None
        self._closed = False

    def publish(self, report: HostReport) -> None:
        """Make this the current report. Watches are told only when it says something new."""
        new = self.report is None or not report.says_the_same(self.report)
        self.report = report
        self.revision += new
        message = report_message(report, self.instance_id, self.revision)
        self._encoded = pb.GetNodeResourcesResponse(report=message).SerializeToString()
        if new:
            self._wake()

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        self._wake()

    async def beat(self) -> None:
        """Wake every watch once an interval, until cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            self._wake()

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler[bytes, bytes]]:
        """Return the service's methods. Messages pass as bytes: requests are empty, answers encoded already."""
        return {
            "GetNodeResources": grpc.unary_unary_rpc_method_handler(self._get),
            "WatchNodeResources": grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _get(self, _request: bytes, _context: object) -> bytes:
        if not self._encoded:
            raise _not_probed()
        return self._encoded

    async def _watch(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        if not self._encoded:
            raise _not_probed()
        self.watches += 1
        try:
            sent = 0
            while not self._closed:
                woken = self._next_wake()
                # A report and its heartbeat are one message: fields of concatenated encodings add up.
                report = self._encoded if self.revision != sent else b""
                sent = self.revision
                yield report + self._heartbeat()
                if not woken.done():
                    await asyncio.shield(woken)
        finally:
            self.watches -= 1

    def _heartbeat(self) -> bytes:
        message = pb.WatchNodeResourcesResponse()
        message.heartbeat_time.FromNanoseconds(time.time_ns())
        message.heartbeat_interval.FromMilliseconds(int(self._heartbeat_seconds * 1000))
        return message.SerializeToString()

    def _next_wake(self) -> asyncio.Future[None]:
        if self._woken is None:
            self._woken = asyncio.get_running_loop().create_future()
        return self._woken

    def _wake(self) -> None:
        if self._woken is not None:
            self._woken.set_result(None)
            self._woken = None


def _not_probed() -> ApiError:
    return ApiError(
        grpc.StatusCode.UNAVAILABLE,
        "PROBE_FAILED",
        "the host has not been read successfully yet; the agent's log tells what fails",
    )
