"""A real server on a free port, with the guard around a service made for the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from agent.config_values import ListenAddress
from agent.rpc.authorization import Authorization
from agent.rpc.guard import CallGuard
from agent.rpc.metrics import CallMetrics
from agent.rpc.server import RpcServer

Handlers = Mapping[str, Any]


def _describe_services() -> None:
    """Reflection describes every service that is served, and so has to find those of tests too."""
    file = descriptor_pb2.FileDescriptorProto(name="test/echo.proto", package="test")
    for name in ("Echo", "Watch"):
        file.service.add(name=name)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


_describe_services()


class RunningServer:
    """A server, its metrics, and a channel to its first address."""

    def __init__(self, server: RpcServer, metrics: CallMetrics, address: str, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.metrics = metrics
        self.address = address
        self.channel = channel

    def active(self) -> dict[str, int]:
        return self.metrics.active()


@pytest.fixture
async def serving() -> AsyncIterator[Callable[..., Any]]:
    """A function that serves handlers by service name: `await serving({"pkg.Service": {...}})`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            services: Mapping[str, Handlers], listen: tuple[ListenAddress, ...] = (ListenAddress("127.0.0.1", 0),)
        ) -> RunningServer:
            metrics = CallMetrics()
            guard = CallGuard(Authorization((), (), mutual_tls=False), metrics)
            server = RpcServer(guard)
            for name, handlers in services.items():
                server.add_service(name, handlers)
            stack.push_async_callback(server.stop)
            address, *_ = await server.start(listen, None)
            await server.set_serving()
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
            return RunningServer(server, metrics, address, channel)

        yield start
        # Calls of the test that still wait are its own to end; give their cancellation one turn of the loop.
        await asyncio.sleep(0)
