"""Addresses, keepalive and reflection of the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships without types
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # ships without types

from agent.config_values import ListenAddress
from agent.rpc.authorization import Authorization
from agent.rpc.guard import CallGuard
from agent.rpc.metrics import CallMetrics
from agent.rpc.server import ListenError, RpcServer
from agent.rpc.unix_socket import UnixSocketPath

Serving = Callable[..., Any]
REFLECTIONS = ["grpc.reflection.v1", "grpc.reflection.v1alpha"]


async def echo(request: bytes, _context: object) -> bytes:
    return request


def services() -> dict[str, Any]:
    return {"test.Echo": {"Say": grpc.unary_unary_rpc_method_handler(echo)}}


def new_server() -> RpcServer:
    return RpcServer(CallGuard(Authorization((), (), mutual_tls=False), CallMetrics()))


async def reflect(channel: grpc.aio.Channel, package: str, **request: str) -> Any:  # noqa: ANN401  # has no types
    call = channel.stream_stream(
        f"/{package}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await call.write(reflection_pb2.ServerReflectionRequest(**request))
    answer = await call.read()
    await call.done_writing()
    call.cancel()
    return answer


@pytest.mark.parametrize("package", REFLECTIONS)
async def test_each_reflection_describes_itself_and_lists_all(serving: Serving, package: str) -> None:
    running = await serving(services())
    listed = await reflect(running.channel, package, list_services="*")
    names = [service.name for service in listed.list_services_response.service]
    assert names == sorted(
        ["test.Echo", "grpc.health.v1.Health", *(f"{each}.ServerReflection" for each in REFLECTIONS)]
    )
    answer = await reflect(running.channel, package, file_containing_symbol=f"{package}.ServerReflection")
    (text,) = answer.file_descriptor_response.file_descriptor_proto
    file = descriptor_pb2.FileDescriptorProto.FromString(text)
    assert file.package == package
    assert file.service[0].method[0].input_type == f".{package}.ServerReflectionRequest"


async def test_health_says_not_serving_until_told() -> None:
    server = new_server()
    server.add_service("test.Echo", services()["test.Echo"])
    (address,) = await server.start((ListenAddress("127.0.0.1", 0),), None)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            for name in ("", "test.Echo"):
                request = health_pb2.HealthCheckRequest(service=name)
                assert (await check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await server.set_serving()
            for name in ("", "test.Echo"):
                request = health_pb2.HealthCheckRequest(service=name)
                assert (await check(request)).status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop()


async def test_an_address_in_use_is_refused() -> None:
    """Two agents on one port would each answer half of the calls."""
    first, second = new_server(), new_server()
    try:
        (address,) = await first.start((ListenAddress("127.0.0.1", 0),), None)
        with pytest.raises(ListenError, match="in use"):
            await second.start((ListenAddress("127.0.0.1", int(address.rpartition(":")[2])),), None)
    finally:
        await first.stop()
        await second.stop()


async def test_a_crowd_is_refused_with_a_reason_and_never_cancelled(serving: Serving) -> None:
    """F21: also when thousands of calls arrive before the first is looked at; health checks among them answer."""
    running = await serving(services())
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)])
            )
            for _ in range(4)
        ]
        says: list[Any] = [channel.unary_unary("/test.Echo/Say") for channel in channels]
        calls = [say(b"x") for say in says for _ in range(900)]
        check = health_pb2.HealthCheckRequest()
        healthy = [health_pb2_grpc.HealthStub(channel).Check(check) for channel in channels for _ in range(10)]
        await asyncio.gather(*calls, *healthy, return_exceptions=True)
        assert {await call.code() for call in calls} <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert {await call.code() for call in healthy} == {grpc.StatusCode.OK}


async def test_a_unix_socket_in_a_private_directory(serving: Serving, short_directory: Path) -> None:
    path = short_directory / f"own-{os.getpid()}" / "agent.sock"
    running = await serving(services(), (ListenAddress(unix_path=str(path)),))
    assert await running.channel.unary_unary("/test.Echo/Say")(b"x") == b"x"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    second = new_server()
    with pytest.raises(ListenError, match="another process listens"):
        await second.start((ListenAddress(unix_path=str(path)),), None)
    await second.stop()
    await running.server.stop()
    assert not path.exists()


async def test_a_socket_left_by_a_dead_process_is_replaced(serving: Serving, short_directory: Path) -> None:
    path = short_directory / f"left-{os.getpid()}" / "agent.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    running = await serving(services(), (ListenAddress(unix_path=str(path)),))
    assert await running.channel.unary_unary("/test.Echo/Say")(b"x") == b"x"


def test_a_socket_that_another_process_has_put_in_its_place_stays(short_directory: Path) -> None:
    """An agent that starts while the one before lets its last calls end."""
    path = short_directory / f"next-{os.getpid()}" / "agent.sock"
    ours = UnixSocketPath.prepare(str(path))
    with socket.socket(socket.AF_UNIX) as leaving, socket.socket(socket.AF_UNIX) as following:
        leaving.bind(str(path))
        ours.close_to_others()
        path.unlink()
        following.bind(str(path))
        ours.remove()
        assert path.exists()
    UnixSocketPath(str(path)).remove()
    assert not path.exists()


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("{0}/" + "x" * 120 + "/s", "the path of a Unix socket must be at most 107 bytes"),
        ("{0}/missing/own/s", "{0}/missing/own: No such file or directory"),
        ("{0}/file/s", "{0}/file must be a directory of this user with mode 0700"),
    ],
)
async def test_why_a_socket_cannot_be_made(short_directory: Path, path: str, rule: str) -> None:
    (short_directory / "file").touch()
    place = path.format(short_directory)
    server = new_server()
    with pytest.raises(ListenError) as refused:
        await server.start((ListenAddress(unix_path=place),), None)
    await server.stop()
    assert str(refused.value) == f"unix:{place}: {rule.format(short_directory)}"


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_directory_others_can_enter_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="mode 0700"):
        UnixSocketPath.prepare(str(tmp_path / "a.sock"))


def test_a_linked_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="mode 0700"):
        UnixSocketPath.prepare(str(tmp_path / "link/a.sock"))


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "a.sock"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match="no socket"):
        UnixSocketPath.prepare(str(file))
    assert file.read_text() == "mine"


class RawConnection:
    """An HTTP/2 connection by hand: settings, pings, and what the server sends."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    SETTINGS, PING, GOAWAY = 4, 6, 7

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        writer.write(self.PREFACE + self._frame(self.SETTINGS, 0, b""))

    @staticmethod
    def _frame(kind: int, flags: int, payload: bytes) -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + (0).to_bytes(4, "big") + payload

    async def ping(self) -> int:
        """Send a ping; return the kind of the frame that answers it, PING or GOAWAY."""
        self._writer.write(self._frame(self.PING, 0, b"12345678"))
        while True:
            head = await self._reader.readexactly(9)
            await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            is_acknowledged = head[3] == self.PING and head[4] & 1
            if is_acknowledged or head[3] == self.GOAWAY:
                return head[3]
            if head[3] == self.SETTINGS and not head[4] & 1:
                self._writer.write(self._frame(self.SETTINGS, 1, b""))

    async def ended(self) -> None:
        """Return once the server has closed the connection; answers nothing, as a host that has lost its power."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                continue


@contextlib.asynccontextmanager
async def raw_connection(address: str) -> AsyncIterator[RawConnection]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_pings_on_an_idle_connection_are_welcome(serving: Serving) -> None:
    """F20: five pings a little more than five seconds apart, no call open; the library's default ends at the fifth.

    The pauses are the input here, not a wait for something.
    """
    running = await serving(services())
    async with raw_connection(running.address) as connection:
        for number in range(5):
            if number:
                await asyncio.sleep(5.1)
            assert await connection.ping() == RawConnection.PING


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_client_that_answers_no_ping_is_given_up(serving: Serving) -> None:
    """A half-open connection ends half a minute after the last word, not after the library's own minute and a third."""
    running = await serving(services())
    async with raw_connection(running.address) as connection:
        assert await connection.ping() == RawConnection.PING
        async with asyncio.timeout(55):
            await connection.ended()


@pytest.mark.long
@pytest.mark.timeout(200)
async def test_a_clients_keepalive_for_two_minutes(serving: Serving) -> None:
    """F20: the real client pings every 10 s on an idle stream and is never sent away."""
    gate = asyncio.Event()

    async def stream(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"first"
        await gate.wait()
        yield b"last"

    handler: Any = grpc.unary_stream_rpc_method_handler(stream)
    running = await serving({"test.Watch": {"Look": handler}})
    options = (
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )
    async with grpc.aio.insecure_channel(running.address, options=options) as channel:
        look: Any = channel.unary_stream("/test.Watch/Look")
        call = look(b"")
        assert await call.read() == b"first"
        until = time.monotonic() + 120
        while time.monotonic() < until:
            await asyncio.sleep(1)
            assert not call.done()
        gate.set()
        assert await call.read() == b"last"
