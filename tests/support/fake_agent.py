"""A real `grpc.aio` server that answers `NodeResources` as an agent would, or misbehaves on request.

The messages are made here and sent as bytes, so that a test can also send what no agent of ours would.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Self

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from cocoonstack.node.v1 import node_resources_pb2 as pb

WATCH_METHOD = "WatchNodeResources"
GET_METHOD = "GetNodeResources"
SERVICE = "cocoonstack.node.v1.NodeResources"


def sample_report(node_name: str, *, instance_id: str = "instance-1", machine_id: str = "") -> pb.NodeResourcesReport:
    """Return a whole, sane report of a host with 32 CPUs."""
    return pb.NodeResourcesReport(
        node_name=node_name,
        instance_id=instance_id,
        revision=1,
        observe_time=_now(),
        capacity={"cpu": "32", "memory": "131927504Ki", "ephemeral-storage": "3906250Ki", "pods": "256"},
        allocatable={"cpu": "25", "memory": "108075011276", "ephemeral-storage": "1250Mi", "pods": "256"},
        labels={
            "cocoonstack.io/pool": "default",
            "node-role.kubernetes.io/cocoon-vm": "",
            "kubernetes.io/hostname": node_name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        },
        managed_label_keys=[
            "cocoonstack.io/pool",
            "cocoonstack.io/snapshot-cpu-class",
            "kubernetes.io/arch",
            "kubernetes.io/hostname",
            "kubernetes.io/os",
            "node-role.kubernetes.io/cocoon-vm",
        ],
        reserve_percent=20,
        host=pb.HostInfo(
            cpu_model="Fake CPU",
            architecture="amd64",
            kernel_version="6.1.0",
            os_image="Fake Linux",
            boot_id=f"boot-{node_name}",
            machine_id=machine_id or f"machine-{node_name}",
            system_uuid=f"uuid-{node_name}",
        ),
        addresses=[
            pb.NodeAddress(type="InternalIP", address="192.0.2.10"),
            pb.NodeAddress(type="Hostname", address=node_name),
        ],
        agent_version="0.0.0-fake",
    )


class FakeAgent:
    """One agent on a port of its own; every knob may be turned while it runs."""

    def __init__(self, node_name: str, *, heartbeat_seconds: float = 0.1) -> None:
        """Prepare an agent that reports `sample_report(node_name)`."""
        self.report = sample_report(node_name)
        self.heartbeat_seconds = heartbeat_seconds
        self.silent = False
        """Send nothing any more, not even heartbeats, but keep the stream open."""
        self.raw: bytes | None = None
        """Send these bytes in place of a message with a report."""
        self.refuse_with: grpc.StatusCode | None = None
        """End each new watch with this status."""
        self.open_watches = 0
        self.watches = 0
        self.port = 0
        self._changed = asyncio.Condition()
        self._generation = 0
        self._server: grpc.aio.Server | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """`127.0.0.1:port` or `unix:/path`."""
        return self._address

    async def start(
        self, *, port: int = 0, unix_path: str = "", credentials: grpc.ServerCredentials | None = None
    ) -> Self:
        """Serve on loopback (a free port, or the given one after a `stop`) or on a Unix socket."""
        server = grpc.aio.server(
            options=(
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.so_reuseport", 0),
            )
        )
        handlers: Mapping[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            WATCH_METHOD: grpc.unary_stream_rpc_method_handler(self._watch),
            GET_METHOD: grpc.unary_unary_rpc_method_handler(self._get),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, dict(handlers)),))
        address = f"unix:{unix_path}" if unix_path else f"127.0.0.1:{port}"
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        self.port = 0 if unix_path else bound
        self._address = address if unix_path else f"127.0.0.1:{bound}"
        await server.start()
        self._server = server
        return self

    async def stop(self) -> None:
        """Die at once: streams break, the port is closed."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace=None)
            await server.wait_for_termination()

    async def __aenter__(self) -> Self:
        """Start on a free port unless started already."""
        return self if self._server else await self.start()

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def publish(self, **fields: object) -> None:
        """Change report fields (maps and lists are replaced) and send the new report on every open watch."""
        for name in fields:
            self.report.ClearField(name)  # type: ignore[arg-type]
        self.report.MergeFrom(pb.NodeResourcesReport(**fields))  # type: ignore[arg-type]
        self.report.revision += 1
        await self.wake()

    async def restart_instance(self, instance_id: str) -> None:
        """Report as a new run of the agent would."""
        self.report.revision = 0
        await self.publish(instance_id=instance_id)

    async def wake(self) -> None:
        """Make every open watch send its report (or `raw`) now."""
        async with self._changed:
            self._generation += 1
            self._changed.notify_all()

    async def _get(self, _request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return pb.GetNodeResourcesResponse(report=self.report).SerializeToString()

    async def _watch(self, _request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        self.watches += 1
        if self.refuse_with is not None:
            await context.abort(self.refuse_with, "refused on request")
        self.open_watches += 1
        try:
            sent = -1
            while True:
                if self.silent:
                    await asyncio.sleep(self.heartbeat_seconds)
                    continue
                changed = sent != self._generation
                sent = self._generation
                yield self._message(with_report=changed)
                await self._changed_or(sent, self.heartbeat_seconds)
        finally:
            self.open_watches -= 1

    async def _changed_or(self, sent: int, seconds: float) -> None:
        async with self._changed:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait_for(lambda: self._generation != sent)
            except TimeoutError:
                return

    def _message(self, *, with_report: bool) -> bytes:
        if with_report and self.raw is not None:
            return self.raw
        interval = Duration()
        interval.FromNanoseconds(int(self.heartbeat_seconds * 1e9))
        return pb.WatchNodeResourcesResponse(
            report=self.report if with_report else None, heartbeat_time=_now(), heartbeat_interval=interval
        ).SerializeToString()


def _now() -> Timestamp:
    now = Timestamp()
    now.FromNanoseconds(time.time_ns())
    return now
