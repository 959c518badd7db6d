"""The gRPC server: addresses, keepalive, health, reflection, a new beginning where it breaks, and an orderly end.

Why this exists: everything a connection can do to us or we to it is set here once, the same for every service.
"""

from __future__ import annotations  # grpc's classes take type arguments in stubs only

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships without types
from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]  # ships without types
    reflection,
    reflection_pb2,
    reflection_pb2_grpc,
)

from agent.config_values import ListenAddress
from agent.rpc.guard import CallGuard
from agent.rpc.reflection import SERVICE_V1, SERVICE_V1ALPHA, reflection_pool
from agent.rpc.unix_socket import UnixSocketPath
from common.logging import fields

_LOG = logging.getLogger(__name__)
_GRACE_SECONDS = 2.0
_LOOK_SECONDS = 1.0
_MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_CONNECTIONS = 256
HANDSHAKE_SECONDS = 10
IDLE_SECONDS = 300
_OPTIONS = (
    # Two agents on one port would each answer half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # Calls that wait to be looked at: with the library's thousand, a crowd makes it cancel some of anybody's unseen,
    # health checks too, before our limits can refuse the right ones with a reason.
    ("grpc.server.max_pending_requests", 8_000),
    ("grpc.server.max_pending_requests_hard_limit", 10_000),
    # More calls of one connection wait at its own end. Far above all the places there are: where this limit is met, the
    # library may end a call as UNAVAILABLE in place of our refusal with a reason.
    ("grpc.max_concurrent_streams", 1_024),
    ("grpc.max_metadata_size", 8_192),
    ("grpc.absolute_max_metadata_size", 16_384),
    # Whoever connects and then says nothing, or stops half-way, has no right to its place for longer than this.
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
    ("grpc.http2.settings_timeout", HANDSHAKE_SECONDS * 1000),
    # Nor has who connects and never calls; a client that comes back later connects again by itself.
    ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
    # Clients ping an idle connection; with the library's minimum of five minutes that ends in too_many_pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # Our own pings notice a client that is gone without a word, so that its watches end.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Without it an unanswered ping is waited for a minute, whatever the line above says.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class ListenError(Exception):
    """An address cannot be listened on; `str()` names it and says why."""


class RpcServer:
    """Bind with `start`, say that all is well with `set_serving`, stay with `keep_serving`, end with `stop`.

    `max_connections` holds for each address by itself: a crowd on the network never keeps a Unix socket's callers out.
    `restarts` counts how often the server had to begin anew.
    """

    def __init__(self, guard: CallGuard, max_connections: int = MAX_CONNECTIONS) -> None:
        self._guard = guard
        self._options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", max_connections))
        self._credentials: grpc.ServerCredentials | None = None
        self._health = health.aio.HealthServicer()
        self._services: dict[str, Mapping[str, grpc.RpcMethodHandler[Any, Any]]] = {}
        self._sockets: list[UnixSocketPath] = []
        self._bound: tuple[ListenAddress, ...] = ()
        self._server = self._new_server()
        self.restarts = 0

    def add_service(self, name: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Serve a service's methods; before `start`."""
        self._services[name] = handlers

    async def start(
        self, addresses: Iterable[ListenAddress], credentials: grpc.ServerCredentials | None
    ) -> tuple[str, ...]:
        """Bind every address, with TLS where it is not local and credentials are given; return them as bound.

        Raises `ListenError`.
        """
        self._credentials = credentials
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._open(addresses)
        return tuple(map(str, self._bound))

    async def set_serving(self) -> None:
        """Let health answer SERVING, for the server and for each service."""
        for name in ("", *self._services):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def keep_serving(self) -> None:
        """Begin anew, on the same addresses, whenever the library gives the server up. Until cancelled or stopped.

        The library does so at a method name that is not UTF-8: it takes no more calls, and lets those that run hang.
        Raises `ListenError` when somebody else has taken an address meanwhile.
        """
        while True:
            try:
                # Without a time it would tell only when the last call has ended.
                has_stopped = not await self._server.wait_for_termination(_LOOK_SECONDS)
            except Exception as error:
                self.restarts += 1
                _LOG.warning("a malformed call ended the gRPC server; it begins anew", extra=fields(error=error))
                await self._server.stop(None)
                self._server = self._new_server()
                await self._open(self._bound)
            else:
                if has_stopped:
                    return

    async def stop(self) -> None:
        """Let health answer NOT_SERVING, let running calls end for a moment, then cut them off."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_SECONDS)
        for socket_path in self._sockets:
            socket_path.remove()

    def _new_server(self) -> grpc.aio.Server:
        return grpc.aio.server(interceptors=(self._guard,), options=self._options)

    async def _open(self, addresses: Iterable[ListenAddress]) -> None:
        self._add_handlers()
        self._sockets.clear()
        self._bound = tuple([self._bind(address) for address in addresses])
        await self._server.start()
        for socket_path in self._sockets:
            socket_path.close_to_others()

    def _bind(self, address: ListenAddress) -> ListenAddress:
        if address.unix_path:
            try:
                self._sockets.append(UnixSocketPath.prepare(address.unix_path))
            except OSError as error:
                why = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
                raise ListenError(f"{address}: {why}") from None
        try:
            if self._credentials is None or address.unix_path:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._credentials)
        except RuntimeError:
            raise ListenError(f"{address}: the address is in use or not this host's") from None
        return address if address.unix_path else ListenAddress(address.host, port)

    def _add_handlers(self) -> None:
        for name, handlers in self._services.items():
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, dict(handlers)),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*self._services, health.SERVICE_NAME, SERVICE_V1ALPHA, SERVICE_V1)
        servicer = reflection.aio.ReflectionServicer(names, reflection_pool(names))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, self._server)
        # The two versions differ in the package's name only; the library ships the older one.
        handler = grpc.stream_stream_rpc_method_handler(
            servicer.ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_V1, {"ServerReflectionInfo": handler}),)
        )
