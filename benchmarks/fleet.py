"""A thousand hosts in one process: simulated agents that speak the real protocol on loopback, each on its own port.

`python -m benchmarks.fleet COUNT [DIRECTORY]` binds COUNT free ports, prints one JSON line `{"agents": {NAME: PORT,
…}}`, and serves until standard input ends or SIGTERM; with DIRECTORY over mutual TLS, each agent with a certificate for
its name, and the caller's files are there. It obeys lines of standard input, and answers each with one of JSON:
`change NAME` takes one page of that agent's memory away (`{"name", "memory", "at"}`, the monotonic time of the change
in seconds), `streams` counts the open ones (`{"streams"}`). The streams behave as the real agent's: the report at
once, again at each change, a heartbeat every 10 s; owner syncs are acknowledged.
"""

import asyncio
import contextlib
import gc
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from benchmarks.certificates import CONTROLLER, Authority
from benchmarks.child_commands import obey_until_ended
from cocoonstack.node.v1 import node_resources_pb2 as pb
from cocoonstack.node.v1 import snapshot_cache_pb2 as snapshot_pb

HEARTBEAT_SECONDS = 10
_PAGE_BYTES = 4096
_GI = 1 << 30
SERVER_OPTIONS = (
    # As the agent's: clients ping every 20 s, without calls too, and must not be sent away for it.
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


class SimulatedAgent:
    """One host: its report, kept encoded, and the streams that wait for its next change."""

    def __init__(self, index: int) -> None:
        self.name = f"sim-{index:05d}"
        self._index = index
        self._instance_id = str(uuid.uuid4())
        self._revision = 1
        self.memory_bytes = 128 * _GI + index * _PAGE_BYTES
        self._changed = asyncio.Event()
        self._encoded = self._encode()
        self.open_streams = 0

    def change(self) -> None:
        """Take one page of memory off and wake every stream."""
        self.memory_bytes -= _PAGE_BYTES
        self._revision += 1
        self._encoded = self._encode()
        self._changed.set()
        self._changed = asyncio.Event()

    async def get(self, request: bytes, context: object) -> bytes:
        """Answer GetNodeResources."""
        del request, context
        report = pb.NodeResourcesReport.FromString(self._encoded)
        return pb.GetNodeResourcesResponse(report=report).SerializeToString()

    async def watch(self, request: bytes, context: object) -> AsyncIterator[bytes]:
        """Answer WatchNodeResources."""
        del request, context
        self.open_streams += 1
        try:
            async for response in self._responses():
                yield response
        finally:
            self.open_streams -= 1

    async def _responses(self) -> AsyncIterator[bytes]:
        interval = Duration(seconds=HEARTBEAT_SECONDS)
        sent = -1
        while True:
            changed = self._changed
            response = pb.WatchNodeResourcesResponse(heartbeat_time=_now(), heartbeat_interval=interval)
            if sent != self._revision:
                sent = self._revision
                response.report.MergeFromString(self._encoded)
            yield response.SerializeToString()
            if sent == self._revision:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT_SECONDS)

    def _encode(self) -> bytes:
        now = _now()
        reserve = self.memory_bytes - self.memory_bytes * 80 // 100
        figures = {
            "cpu": ("32", "25", 32000, [("RESERVE", -6400), ("WHOLE_CORES", -600)], 25000),
            "memory": _bytes_figure(self.memory_bytes, reserve),
            "ephemeral-storage": ("3906250Ki", "3125000Ki", 4_000_000_000, [("RESERVE", -800_000_000)], 3_200_000_000),
            "pods": ("256", "256", 256, [], 256),
        }
        labels = {
            "cocoonstack.io/pool": "default",
            "node-role.kubernetes.io/cocoon-vm": "",
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        report = pb.NodeResourcesReport(
            node_name=self.name,
            instance_id=self._instance_id,
            revision=self._revision,
            observe_time=now,
            capacity={name: figure[0] for name, figure in figures.items()},
            allocatable={name: figure[1] for name, figure in figures.items()},
            labels=labels,
            managed_label_keys=sorted([*labels, "cocoonstack.io/snapshot-cpu-class"]),
            reserve_percent=20,
            resources=[
                pb.ResourceExplanation(
                    name=name,
                    source=pb.RESOURCE_SOURCE_PROBED,
                    origin="simulated",
                    raw_value=raw,
                    adjustments=[pb.Adjustment(reason=reason, value=value) for reason, value in adjustments],
                    capacity_value=raw,
                    allocatable_value=allocatable,
                    observe_time=now,
                )
                for name, (_, _, raw, adjustments, allocatable) in sorted(figures.items())
            ],
            host=pb.HostInfo(
                cpu_model="Simulated CPU",
                architecture="amd64",
                kernel_version="6.1.0",
                os_image="Simulated Linux",
                boot_id=str(uuid.UUID(int=2 * self._index + 1)),
                machine_id=uuid.UUID(int=self._index + 1).hex,
                system_uuid=str(uuid.UUID(int=2 * self._index + 2)),
            ),
            addresses=[
                pb.NodeAddress(type="Hostname", address=self.name),
                pb.NodeAddress(type="InternalIP", address=f"10.64.{self._index // 256}.{self._index % 256}"),
            ],
            agent_version="0.0.0",
        )
        return report.SerializeToString()


def _bytes_figure(capacity: int, reserve: int) -> tuple[str, str, int, list[tuple[str, int]], int]:
    allocatable = capacity - reserve
    return _quantity(capacity), _quantity(allocatable), capacity, [("RESERVE", -reserve)], allocatable


def _quantity(value: int) -> str:
    for suffix in ("", "Ki", "Mi", "Gi"):
        if value % 1024 or suffix == "Gi":
            return f"{value}{suffix}"
        value //= 1024
    raise AssertionError


def _now() -> Timestamp:
    now = time.time_ns()
    return Timestamp(seconds=now // 1_000_000_000, nanos=now % 1_000_000_000)


async def _sync_owners(request: bytes, context: object) -> bytes:
    del context
    revision = snapshot_pb.SyncOwnersRequest.FromString(request).sync_revision
    return snapshot_pb.SyncOwnersResponse(sync_revision=revision).SerializeToString()


async def _start(agent: SimulatedAgent, authority: Authority | None) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    services: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {
        "cocoonstack.node.v1.NodeResources": {
            "GetNodeResources": grpc.unary_unary_rpc_method_handler(agent.get),
            "WatchNodeResources": grpc.unary_stream_rpc_method_handler(agent.watch),
        },
        "cocoonstack.node.v1.SnapshotCache": {"SyncOwners": grpc.unary_unary_rpc_method_handler(_sync_owners)},
    }
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, handlers) for service, handlers in services.items()]
    )
    if authority is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = authority.issue(agent.name)
        credentials = grpc.ssl_server_credentials([pair], authority.certificate, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    return server, port


async def _serve(count: int, tls_directory: Path | None) -> None:
    authority = None
    if tls_directory is not None:
        authority = Authority()
        authority.issue_into(tls_directory, CONTROLLER)
    agents: dict[str, SimulatedAgent] = {}
    servers: list[grpc.aio.Server] = []
    ports: dict[str, int] = {}
    for index in range(count):
        agent = SimulatedAgent(index)
        server, ports[agent.name] = await _start(agent, authority)
        servers.append(server)
        agents[agent.name] = agent
    gc.collect()
    gc.freeze()
    print(json.dumps({"agents": ports}), flush=True)
    await obey_until_ended(lambda line: print(json.dumps(_obey(agents, line)), flush=True))
    await asyncio.gather(*(server.stop(0) for server in servers))


def _obey(agents: dict[str, SimulatedAgent], line: str) -> dict[str, object]:
    verb, _, name = line.partition(" ")
    if verb == "streams":
        return {"streams": sum(agent.open_streams for agent in agents.values())}
    if verb != "change" or name not in agents:
        return {"error": f"not understood: {line}"}
    agent = agents[name]
    changed_at = time.monotonic()
    agent.change()
    return {"name": name, "memory": _quantity(agent.memory_bytes), "at": changed_at}


def main() -> None:
    """Serve as many agents as the first argument says, over mutual TLS if there is a second."""
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))


if __name__ == "__main__":
    main()
