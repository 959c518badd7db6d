"""HTTP/1.1 for one small request a hundred times a second, with as little in between as possible.

A renewal of a Lease through the general HTTP library costs 0.7 ms, three quarters of it in the library; a thousand
Nodes are a hundred of them a second. This does the few things such a request needs, and refuses what it does not know.
Everything else goes through `transport`.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_LARGEST_HEAD_BYTES = 64 * 1024
_LARGEST_ANSWER_BYTES = 4 * 1024 * 1024
_IDLE_SECONDS = 60.0
_HEAD_END = b"\r\n\r\n"


class LeanError(OSError):
    """No usable answer: the connection broke, or the peer does not speak HTTP/1.1 as expected."""


@dataclass(frozen=True, slots=True)
class LeanAnswer:
    """Status code, body, and the text of the Retry-After header if there was one."""

    status: int
    body: bytes
    retry_after: str | None


@dataclass(slots=True)
class _Head:
    """What the head of an answer says; `length` is None for a body in chunks."""

    status: int
    length: int | None
    closes: bool
    retry_after: str | None


class LeanPool:
    """Connections to one server, reused newest first. `base_url` has scheme, host and port and no path."""

    def __init__(self, base_url: str, context: ssl.SSLContext | None, server_name: str | None) -> None:
        """Connects to nothing yet."""
        url = urlsplit(base_url)
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._prefix = url.path
        self._context = context
        self._server_name = (server_name or self._host) if context is not None else None
        self._host_header = url.netloc.rpartition("@")[2]
        self._idle: list[_Connection] = []
        self._closed = False

    def close(self) -> None:
        """Close idle connections; those under way are closed when they are done."""
        self._closed = True
        self._drop_idle()

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> LeanAnswer:
        """Send one request and read its answer. Raises OSError; cancelled, it closes its connection."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if "\n" in path or " " in path or lines.count("\n") != len(headers):
            raise ValueError("a header or path with a line break would be another request")
        head = (
            f"{method} {self._prefix}{path} HTTP/1.1\r\nHost: {self._host_header}\r\n{lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection = await self._connection()
        done = False
        try:
            answer = await connection.exchange(head.encode("latin-1") + body)
            done = True
        finally:
            if done and connection.reusable and not self._closed:
                self._idle.append(connection)
            else:
                connection.abort()
            if not done:
                # What broke this connection may have broken those that wait, and a repetition must not meet them.
                self._drop_idle()
        return answer

    async def _connection(self) -> "_Connection":
        oldest = time.monotonic() - _IDLE_SECONDS
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.used_at > oldest:
                self._drop_older_than(oldest)
                return connection
            connection.abort()
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._context, server_hostname=self._server_name
        )
        return made

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    def _drop_older_than(self, oldest: float) -> None:
        # The list is a stack, so what has been idle longest lies at its bottom.
        while self._idle and self._idle[0].used_at <= oldest:
            self._idle.pop(0).abort()


@dataclass(slots=True, eq=False)
class _Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    reusable: bool = True
    used_at: float = field(default_factory=time.monotonic)
    _transport: asyncio.Transport | None = None
    _buffer: bytearray = field(default_factory=bytearray)
    _head: _Head | None = None
    _answer: "asyncio.Future[LeanAnswer] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what create_connection makes, for the type checker
        self._transport = transport

    async def exchange(self, request: bytes) -> LeanAnswer:
        """Send a request and wait for its answer."""
        if self._transport is None or self._transport.is_closing():
            raise LeanError("the connection is closed")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def abort(self) -> None:
        """Close at once."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the answer."""
        if self._answer is None or self._answer.done():
            # Bytes nobody asked for: whatever they are, they must not become the next request's answer.
            self.abort()
            return
        self._buffer += data
        try:
            self._read()
        except (ValueError, IndexError):
            self._fail("the answer is not HTTP/1.1 as expected")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; an answer without a length is complete now."""
        self.reusable = False
        if self._answer is not None and not self._answer.done():
            self._fail(str(exc or "the connection was closed before the answer was complete"))

    def _fail(self, why: str) -> None:
        self.abort()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LeanError(why))

    def _read(self) -> None:
        if self._head is None:
            self._head = self._read_head()
        head = self._head
        if head is None:
            return
        body = self._read_chunks() if head.length is None else self._read_plain(head.length)
        if body is None:
            if len(self._buffer) > _LARGEST_ANSWER_BYTES:
                self._fail("the answer is too large")
            return
        self.reusable = self.reusable and not head.closes and not self._buffer
        self.used_at = time.monotonic()
        self._head = None
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.set_result(LeanAnswer(head.status, body, head.retry_after))

    def _read_head(self) -> _Head | None:
        while True:
            end = self._buffer.find(_HEAD_END)
            if end < 0:
                if len(self._buffer) > _LARGEST_HEAD_BYTES:
                    raise ValueError("head too large")
                return None
            lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            del self._buffer[: end + len(_HEAD_END)]
            head = _parse_head(lines)
            if head.status >= 200:
                return head

    def _read_plain(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def _read_chunks(self) -> bytes | None:
        """The whole body once its last chunk is there; trailers are not sent by API servers and refused."""
        parts: list[bytes] = []
        at = 0
        while True:
            line_end = self._buffer.find(b"\r\n", at)
            if line_end < 0:
                return None
            size = int(bytes(self._buffer[at:line_end]).split(b";")[0], 16)
            start, at = line_end + 2, line_end + 2 + size + 2
            if size < 0:
                raise ValueError("chunk size")
            if len(self._buffer) < at:
                return None
            if self._buffer[at - 2 : at] != b"\r\n":
                raise ValueError("chunk without its end")
            if size == 0:
                del self._buffer[:at]
                return b"".join(parts)
            parts.append(bytes(self._buffer[start : start + size]))


def _parse_head(lines: list[str]) -> _Head:
    version, code, *_ = lines[0].split(" ", 2)
    if version != "HTTP/1.1":
        raise ValueError("version")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    status = int(code)
    closes = headers.get("connection", "").lower() == "close"
    retry_after = headers.get("retry-after")
    if status in (204, 304) or status < 200:
        return _Head(status, 0, closes, retry_after)
    encoding = headers.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            raise ValueError("transfer encoding")
        return _Head(status, None, closes, retry_after)
    length = int(headers["content-length"]) if "content-length" in headers else -1
    if length < 0 or length > _LARGEST_ANSWER_BYTES:
        raise ValueError("content length")
    return _Head(status, length, closes, retry_after)
