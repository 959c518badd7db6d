"""What the listener answers, and what it does not let a caller do to it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from common import http_listener
from common.http_listener import HttpListener, Page

BIG = b"x" * (4 << 20)


async def healthy() -> Page:
    return Page(200, b"ok\n")


async def big() -> Page:
    return Page(200, BIG, "application/octet-stream")


async def broken() -> Page:
    raise RuntimeError("secret")


@contextlib.asynccontextmanager
async def listening(on_drop: Callable[[], object] = bool) -> AsyncIterator[tuple[str, int]]:
    listener = HttpListener({"/healthz": healthy, "/big": big, "/broken": broken}, on_drop)
    bound = await listener.start("127.0.0.1", 0)
    host, _, port = bound.rpartition(":")
    try:
        yield host, int(port)
    finally:
        await listener.close()


async def exchange(address: tuple[str, int], request: bytes) -> tuple[bytes, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /healthz HTTP/1.1", b"200 OK", b"ok\n"),
        (b"GET /healthz?verbose=1 HTTP/1.0", b"200 OK", b"ok\n"),
        (b"HEAD /healthz HTTP/1.1", b"200 OK", b""),
        (b"GET /big HTTP/1.1", b"200 OK", BIG),
        (b"GET / HTTP/1.1", b"404 Not Found", b"/big\n/broken\n/healthz\n"),
        (b"GET /../etc/passwd HTTP/1.1", b"404 Not Found", b"/big\n/broken\n/healthz\n"),
        (b"POST /healthz HTTP/1.1", b"405 Method Not Allowed", b"only GET and HEAD\n"),
        (b"GET /broken HTTP/1.1", b"500 Internal Server Error", b"internal error\n"),
        (b"GET /healthz", b"400 Bad Request", b"not a request this listener takes\n"),
        (b"\x16\x03\x01\x02\x00", b"400 Bad Request", b"not a request this listener takes\n"),
        (b"GET /healthz HTTP/2", b"400 Bad Request", b"not a request this listener takes\n"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 20_000, b"400 Bad Request", b"not a request this listener takes\n"),
    ],
)
async def test_answers(request_line: bytes, status: bytes, body: bytes) -> None:
    async with listening() as address:
        head, answer = await exchange(address, request_line + b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert answer == body
    assert b"Connection: close" in head


async def test_a_caller_that_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "_SECONDS_PER_REQUEST", 0.1)
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /heal")
        with contextlib.suppress(OSError):
            assert await reader.read() == b""
        writer.close()


async def test_a_crowd_costs_the_oldest_of_the_host_that_has_most() -> None:
    """A probe's question is answered however many say nothing, from one host or from many."""
    drops: list[None] = []
    async with listening(lambda: drops.append(None)) as address, contextlib.AsyncExitStack() as stack:
        honest = await asyncio.open_connection(*address, local_addr=("127.0.0.9", 0))
        crowd = [await asyncio.open_connection(*address) for _ in range(http_listener.MAX_CONNECTIONS + 20)]
        for _, writer in (honest, *crowd):
            stack.callback(writer.close)
        head, _ = await exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        for reader, _ in crowd[:20]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        for _, writer in (honest, *crowd[21:]):
            writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        answers = await asyncio.gather(*(reader.read() for reader, _ in (honest, *crowd[22:])))
        assert all(answer.endswith(b"ok\n") for answer in answers)
    assert drops == [None] * 22


async def test_closing_ends_what_is_open() -> None:
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET")
        await writer.drain()
    with contextlib.suppress(OSError):
        assert await reader.read() == b""
    writer.close()


async def test_an_address_in_use_is_an_error() -> None:
    async with listening() as (host, port):
        with pytest.raises(OSError, match="in use"):
            await HttpListener({}).start(host, port)
