"""Plain questions to an agent's SnapshotCache, as a person with grpcurl asks them."""

from __future__ import annotations

import grpc

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1 import snapshot_cache_pb2_grpc as rpc

_SECONDS = 10


def snapshots(address: str) -> dict[str, pb.Snapshot]:
    """Return all snapshots of an agent by name."""
    with grpc.insecure_channel(address) as channel:
        stub = rpc.SnapshotCacheStub(channel)
        answer = stub.ListSnapshots(pb.ListSnapshotsRequest(page_size=1000), timeout=_SECONDS)
        return {snapshot.name: snapshot for snapshot in answer.snapshots}


def state(address: str, name: str) -> str:
    """Return the state of a snapshot such as RETAINED, GONE when there is none of that name."""
    found = snapshots(address).get(name)
    return "GONE" if found is None else pb.SnapshotState.Name(found.state).removeprefix("SNAPSHOT_STATE_")


def retention(address: str, name: str) -> tuple[str, float | None]:
    """Return why a snapshot is kept, empty when it is not, and when that ends (Unix seconds)."""
    found = snapshots(address).get(name)
    if found is None or not found.HasField("retention"):
        return "", None
    kept = found.retention
    ends = kept.expire_time.ToNanoseconds() / 1e9 if kept.HasField("expire_time") else None
    return pb.RetainReason.Name(kept.reason).removeprefix("RETAIN_REASON_"), ends


def usage(address: str) -> pb.GetCacheUsageResponse:
    """Return the state of the cache as a whole."""
    with grpc.insecure_channel(address) as channel:
        return rpc.SnapshotCacheStub(channel).GetCacheUsage(pb.GetCacheUsageRequest(), timeout=_SECONDS)
