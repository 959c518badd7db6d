"""Simulated agents that keep snapshots too: `python -m benchmarks.deletion_agents COUNT FIRST`, served like the fleet.

Each has one snapshot for every pod that it was told of, which a retain keeps and a purge removes; nothing is on disk.
The line `told` on standard input is answered with how many agents were told their owners, and how often in all.
"""

import asyncio
import gc
import json
import os
import signal
import sys

import grpc

from benchmarks.fleet import SERVER_OPTIONS, SimulatedAgent
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

_Method = dict[str, "grpc.RpcMethodHandler[bytes, bytes]"]


class SimulatedCache:
    """What one agent knows of owners, and the snapshots of those that are gone, by the pod's UID."""

    def __init__(self) -> None:
        self.told = 0
        self._owners: dict[str, pb.Owner] = {}
        self._left: dict[str, pb.Snapshot] = {}
        self._kept: set[str] = set()

    async def sync(self, request: bytes, context: object) -> bytes:
        """Answer SyncOwners."""
        del context
        message = pb.SyncOwnersRequest.FromString(request)
        owners = {owner.pod_uid: owner for owner in message.owners}
        for uid, owner in self._owners.items():
            if uid not in owners:
                kept = owner.keep_on_delete or uid in self._kept
                self._left[uid] = _snapshot(owner, kept=kept)
        self._owners = owners
        self.told += 1
        answer = pb.SyncOwnersResponse(
            sync_revision=message.sync_revision, unclaimed_snapshots=list(self._left.values())
        )
        return answer.SerializeToString()

    async def retain(self, request: bytes, context: object) -> bytes:
        """Answer RetainSnapshots."""
        del context
        owner = pb.RetainSnapshotsRequest.FromString(request).owner
        self._kept.add(owner.pod_uid)
        snapshot = _snapshot(owner, kept=True)
        if owner.pod_uid in self._left:
            self._left[owner.pod_uid] = snapshot
        return pb.RetainSnapshotsResponse(snapshots=[snapshot], outcome=pb.RETAIN_OUTCOME_RETAINED).SerializeToString()

    async def purge(self, request: bytes, context: object) -> bytes:
        """Answer PurgeSnapshots."""
        del context
        owner = pb.PurgeSnapshotsRequest.FromString(request).owner
        removed = self._left.pop(owner.pod_uid, None)
        outcome = pb.PURGE_OUTCOME_PURGED if removed is not None else pb.PURGE_OUTCOME_NOTHING_TO_PURGE
        return pb.PurgeSnapshotsResponse(
            results=[pb.PurgeResult(name=owner.vm_name, outcome=outcome)]
        ).SerializeToString()

    def methods(self) -> _Method:
        """Return the calls by name."""
        return {
            "SyncOwners": grpc.unary_unary_rpc_method_handler(self.sync),
            "RetainSnapshots": grpc.unary_unary_rpc_method_handler(self.retain),
            "PurgeSnapshots": grpc.unary_unary_rpc_method_handler(self.purge),
        }


def _snapshot(owner: pb.Owner, *, kept: bool) -> pb.Snapshot:
    snapshot = pb.Snapshot(
        name=owner.vm_name,
        vm_name=owner.vm_name,
        owner=owner,
        state=pb.SNAPSHOT_STATE_RETAINED if kept else pb.SNAPSHOT_STATE_UNCLAIMED,
        allocated_bytes=1 << 30,
    )
    if kept:
        snapshot.retention.owner.CopyFrom(owner)
        snapshot.retention.reason = pb.RETAIN_REASON_SEAT_RELEASE
    return snapshot


async def _start(agent: SimulatedAgent, cache: SimulatedCache) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    resources: _Method = {
        "GetNodeResources": grpc.unary_unary_rpc_method_handler(agent.get),
        "WatchNodeResources": grpc.unary_stream_rpc_method_handler(agent.watch),
    }
    services = {"NodeResources": resources, "SnapshotCache": cache.methods()}
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(f"cocoonstack.node.v1.{service}", methods)
            for service, methods in services.items()
        ]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def _serve(count: int, first: int) -> None:
    caches: list[SimulatedCache] = []
    servers: list[grpc.aio.Server] = []
    ports: dict[str, int] = {}
    for index in range(first, first + count):
        agent, cache = SimulatedAgent(index), SimulatedCache()
        server, ports[agent.name] = await _start(agent, cache)
        servers.append(server)
        caches.append(cache)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    print(json.dumps({"agents": ports}), flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def read() -> None:
        chunk = os.read(sys.stdin.fileno(), 65536)
        if not chunk:
            loop.remove_reader(sys.stdin.fileno())
            stop.set()
        for _ in range(chunk.count(b"\n")):
            times = [cache.told for cache in caches]
            print(json.dumps({"told": sum(map(bool, times)), "syncs": sum(times)}), flush=True)

    loop.add_reader(sys.stdin.fileno(), read)
    await stop.wait()
    # Nobody is left who could wait for answers; closing thousands of servers one by one would take longer than we do.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
