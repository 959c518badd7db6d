"""A snapshot cache behind a real server, with a client's calls."""

# ruff: noqa: ANN401  # stubs and messages of every call pass through here

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships without types

from agent.config_values import ListenAddress, listen_addresses
from agent.rpc.authorization import Authorization
from agent.rpc.guard import CallGuard
from agent.rpc.metrics import CallMetrics
from agent.rpc.server import RpcServer
from agent.snapshots.service import SERVICE_NAME, SnapshotCacheService
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from tests.agent.snapshots.caching import CacheHost


@dataclass
class Served:
    """A cache behind a real server, and a client's calls."""

    host: CacheHost
    calls: Any
    service: SnapshotCacheService
    address: str


@contextlib.asynccontextmanager
async def serving(host: CacheHost) -> AsyncIterator[Served]:
    """Serve a host's cache while the block lasts."""
    service = SnapshotCacheService(host.cache, heartbeat_seconds=0.05)
    server = RpcServer(CallGuard(Authorization((), (), mutual_tls=False), CallMetrics()))
    server.add_service(SERVICE_NAME, service.handlers())
    addresses: tuple[ListenAddress, ...] = listen_addresses("127.0.0.1:0")
    bound = await server.start(addresses, None)
    async with grpc.aio.insecure_channel(bound[0]) as channel:
        yield Served(host, SnapshotCacheStub(channel), service, bound[0])
    service.close()
    await server.stop()


def details(error: grpc.aio.AioRpcError) -> tuple[str, dict[str, str], list[str]]:
    """Return reason, metadata and violated fields of an error."""
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(request)
    assert info.domain == "node.cocoonstack.io"
    return info.reason, dict(info.metadata), [violation.field for violation in request.field_violations]


def changing(message: Any, epoch: int = 1) -> Any:
    message.controller_epoch = epoch
    message.cluster_id = "cluster-1"
    return message
