"""The lean transport: whole answers however they are cut, no answer taken for another's, nothing left open."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kube.lean import LeanAnswer, LeanError, LeanPool, _Connection
from tests.support.waiting import wait_for_async

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def plain(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def chunked(*parts: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{headers}\r\n".encode()
    return head + b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts) + b"0\r\n\r\n"


class FakeTransport(asyncio.Transport):
    """Takes what is written; knows whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = False

    def write(self, data: object) -> None:
        """Nothing to keep."""

    def is_closing(self) -> bool:
        """Whether it was aborted."""
        return self.aborted

    def abort(self) -> None:
        """Note it."""
        self.aborted = True


async def read(pieces: list[bytes]) -> LeanAnswer:
    """The answer in these pieces."""
    connection = _Connection()
    connection.connection_made(FakeTransport())
    exchange = asyncio.ensure_future(connection.exchange(b""))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    if not exchange.done():
        await asyncio.sleep(0)
    if not exchange.done():
        connection.connection_lost(None)
    return await exchange


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """A valid answer cut anywhere, and its body."""
    parts = draw(st.lists(st.binary(min_size=1, max_size=40), max_size=4))
    body = b"".join(parts)
    whole = chunked(*parts) if draw(st.booleans()) else plain(body)
    if draw(st.booleans()):
        whole = b"HTTP/1.1 100 Continue\r\n\r\n" + whole
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    edges = [0, *places, len(whole)]
    return [whole[a:b] for a, b in itertools.pairwise(edges)], body


@given(cut_answers())
def test_an_answer_is_whole_however_it_is_cut(cut: tuple[list[bytes], bytes]) -> None:
    pieces, body = cut
    answer = asyncio.run(read(pieces))
    assert (answer.status, answer.body) == (200, body)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_ends_in_an_error(garbage: bytes, after_head: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" if after_head else b""
    try:
        answer = asyncio.run(read([head + garbage]))
    except LeanError:
        return
    # Only something that is an answer by itself may pass.
    assert garbage.startswith(b"HTTP/1.1 ") or (after_head and b"0\r\n" in garbage)
    assert isinstance(answer.body, bytes)


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"X" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
    ],
)
async def test_what_is_not_understood_is_refused(wrong: bytes) -> None:
    with pytest.raises(LeanError):
        await read([wrong])


async def test_bytes_nobody_asked_for_close_the_connection() -> None:
    connection, transport = _Connection(), FakeTransport()
    connection.connection_made(transport)
    connection.data_received(plain(b"not asked for"))
    assert transport.aborted
    assert not connection.reusable
    answered, transport = _Connection(), FakeTransport()
    answered.connection_made(transport)
    exchange = asyncio.ensure_future(answered.exchange(b""))
    await asyncio.sleep(0)
    answered.data_received(plain(b"mine") + plain(b"another's"))
    assert (await exchange).body == b"mine"
    assert not answered.reusable


class Server:
    """A server on loopback that answers each request with the next of its answers."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.open = 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; an answer of None never comes."""
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is not None:
                    writer.write(answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncIterator[tuple[Server, LeanPool]]:
    server = Server(*answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    pool = LeanPool(f"http://127.0.0.1:{port}/prefix", None, None)
    try:
        yield server, pool
    finally:
        pool.close()
        await wait_for_async(lambda: server.open == 0, what="every connection being closed")
        listener.close()
        await listener.wait_closed()


async def test_connections_are_used_again() -> None:
    async with serving(plain(b"ok")) as (server, pool):
        for _ in range(5):
            assert (await pool.request("PUT", "/x?a=b", {"A": "b"}, b"body")).body == b"ok"
    assert server.connections == 1
    assert server.heads[0].startswith(b"PUT /prefix/x?a=b HTTP/1.1\r\nHost: 127.0.0.1:")


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async with serving(plain(b"ok")) as (server, pool):
        answers = await asyncio.gather(*[pool.request("PUT", "/x", {}, b"") for _ in range(8)])
    assert [answer.body for answer in answers] == [b"ok"] * 8
    assert server.connections == 8


@pytest.mark.parametrize("header", ["Connection: close\r\n", ""])
async def test_a_connection_the_server_closes_is_not_used_again(header: str) -> None:
    async with serving(plain(b"ok", headers=header), plain(b"ok")) as (server, pool):
        await pool.request("PUT", "/x", {}, b"")
        await pool.request("PUT", "/x", {}, b"")
    assert server.connections == (2 if header else 1)


async def test_a_cancelled_request_closes_its_connection() -> None:
    async with serving(None) as (server, pool):
        task = asyncio.create_task(pool.request("PUT", "/x", {}, b""))
        await wait_for_async(lambda: server.heads)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_for_async(lambda: server.open == 0)


async def test_after_a_failure_no_connection_is_used_again_that_waited_meanwhile() -> None:
    """Behind a router that forgot all connections, a repetition must not meet the next dead one."""
    async with serving(plain(b"ok"), plain(b"ok"), plain(b"ok"), None, plain(b"ok")) as (server, pool):
        await asyncio.gather(*[pool.request("PUT", "/x", {}, b"") for _ in range(3)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await pool.request("PUT", "/x", {}, b"")
        await wait_for_async(lambda: server.open == 0)
        assert (await pool.request("PUT", "/x", {}, b"")).body == b"ok"
        assert (server.connections, server.open) == (4, 1)


async def test_refusals_keep_their_wish() -> None:
    async with serving(plain(b"{}", "429 Too Many Requests", "Retry-After: 7\r\n")) as (_, pool):
        answer = await pool.request("PUT", "/x", {}, b"")
    assert (answer.status, answer.retry_after) == (429, "7")


@pytest.mark.parametrize(("path", "headers"), [("/x\r\nA: b", {}), ("/x y", {}), ("/x", {"A": "b\r\nC: d"})])
async def test_a_line_break_cannot_smuggle_a_request(path: str, headers: dict[str, str]) -> None:
    async with serving(plain(b"ok")) as (server, pool):
        with pytest.raises(ValueError, match="line break"):
            await pool.request("PUT", path, headers, b"")
    assert server.connections == 0
