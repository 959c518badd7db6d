"""Calls of SnapshotCache for the commands: to a running agent, or to the store of a stopped one.

Why this exists: a command does the same either way. Offline, the cache is opened in this process and served on a
private socket, so that there is one path for every rule and every error.
"""

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from agent.ask import CHANNEL_OPTIONS
from agent.config import Settings
from agent.config_values import ListenAddress
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub

CALL_SECONDS = 60.0


class ClientError(Exception):
    """The call could not be made or was refused; `str()` is one sentence for a person."""


@contextlib.contextmanager
def online(address: str) -> Iterator[SnapshotCacheStub]:
    """Give the calls of the agent at `HOST:PORT` or `unix:PATH`, in plain text."""
    with (
        grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
        _told_in_one_sentence(f"the agent at {address}"),
    ):
        yield SnapshotCacheStub(grpc.intercept_channel(channel, _Deadline()))


@contextlib.contextmanager
def offline(settings: Settings) -> Iterator[SnapshotCacheStub]:
    """Give the calls of a cache opened in this process, on the store and ledger of a stopped agent."""
    with tempfile.TemporaryDirectory(prefix="cocoon-node-") as directory:
        served = _Served(settings, os.path.join(directory, "socket"))
        served.start()
        try:
            with (
                grpc.insecure_channel(f"unix:{served.path}", options=CHANNEL_OPTIONS) as channel,
                _told_in_one_sentence("the snapshot store"),
            ):
                yield SnapshotCacheStub(channel)
        finally:
            served.stop()


def default_address(settings: Settings) -> str:
    """Return the address a command on this host calls: the first the agent listens on without certificates.

    With certificates set these are Unix sockets only. Raises ClientError when there is none.
    """
    has_certificates = settings.tls_cert_file is not None
    for address in settings.listen:
        if address.unix_path or not has_certificates:
            return str(address)
    raise ClientError(
        "this agent takes calls with certificates only; add a Unix socket to COCOON_NODE_LISTEN for commands on this"
        f" host, such as {','.join(map(str, settings.listen))},unix:{settings.state_dir}/run/agent.sock"
    )


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.ClientCallDetails):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Deadline(grpc.UnaryUnaryClientInterceptor):
    """Gives up on an agent that does not answer; a collection, which streams, may take its time."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:  # noqa: ANN401 # any call
        """Set the deadline."""
        details = client_call_details
        return continuation(
            _CallDetails(
                method=details.method,
                timeout=CALL_SECONDS,
                metadata=details.metadata,
                credentials=details.credentials,
                wait_for_ready=details.wait_for_ready,
                compression=details.compression,
            ),
            request,
        )


@contextlib.contextmanager
def collecting_refusals(into: list[str] | None) -> Iterator[None]:
    """Note why a call about one of many was refused and go on; without a list, and when nobody answers, do not."""
    try:
        yield
    except grpc.RpcError as error:
        if into is None or error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise
        into.append(f"{error.details()} ({error.code().name})")


class _Served:
    """A cache with a server, on an event loop of its own thread."""

    def __init__(self, settings: Settings, path: str) -> None:
        self.path = path
        self._settings = settings
        self._ready = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="offline-agent")

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise ClientError(str(self._error)) from self._error

    def stop(self) -> None:
        if self._loop is not None and self._stopped is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    async def _serve(self) -> None:
        # Imported here: a command that calls a running agent needs neither cache nor server.
        from agent.rpc.authorization import Authorization
        from agent.rpc.guard import CallGuard
        from agent.rpc.metrics import CallMetrics
        from agent.rpc.server import ListenError, RpcServer
        from agent.snapshots.assembly import SnapshotParts
        from agent.snapshots.errors import SnapshotError
        from agent.snapshots.service import SERVICE_NAME

        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        parts = SnapshotParts(self._settings)
        server = RpcServer(CallGuard(Authorization((), (), mutual_tls=False), CallMetrics()))
        server.add_service(SERVICE_NAME, parts.service.handlers())
        try:
            await parts.cache.open()
            parts.cache.require_available()
            await server.start((ListenAddress(unix_path=self.path),), None)
            self._ready.set()
            await self._stopped.wait()
        except (SnapshotError, ListenError) as error:
            self._error = error
        finally:
            parts.end_watches()
            await server.stop()
            await parts.stop()
            self._ready.set()


@contextlib.contextmanager
def _told_in_one_sentence(whom: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.UNAVAILABLE and "connect" in (details or "").lower():
            raise ClientError(f"{whom} does not answer: {details}; with a stopped agent use --offline") from None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ClientError(f"{whom} has not answered for {CALL_SECONDS:g} s") from None
        raise ClientError(f"{whom} refused: {details} ({code.name})") from None
