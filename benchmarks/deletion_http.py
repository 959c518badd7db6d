"""HTTP/1.1 for a stand-in API server under load, with as little in between as possible: it is not to be measured.

Requests with a length, answers with a length, and streams in chunks, one for each line, as API servers send watches.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

_HEAD_END = b"\r\n\r\n"
_REASONS = {200: "OK", 201: "Created", 404: "Not Found", 409: "Conflict"}


class Stream:
    """The open answer to a watch; `is_open` until the client or the server ends it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Nothing is sent before `begin`."""
        self._transport = transport

    @property
    def is_open(self) -> bool:
        """Whether anybody still listens."""
        return not self._transport.is_closing()

    def begin(self) -> None:
        """Send the head."""
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

    def send(self, line: bytes) -> None:
        """Send one chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(line), line))


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `parts` are the path's segments, `stream` is for whoever answers with one."""

    method: str
    parts: tuple[str, ...]
    query: dict[str, str]
    content_type: str
    body: bytes
    stream: Stream = field(repr=False)


# Status and body; None: the request is answered by its stream.
Answer = tuple[int, bytes] | None


class Connection(asyncio.Protocol):
    """One client's connection; every request is answered at once by a function."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        """`answer` must not block."""
        self._answer = answer
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._buffer += data
        assert self._transport is not None
        while (request := self._next(self._transport)) is not None:
            answer = self._answer(request)
            if answer is None:
                continue
            status, body = answer
            head = (
                f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            self._transport.writelines((head.encode(), body))

    def _next(self, transport: asyncio.Transport) -> Request | None:
        end = self._buffer.find(_HEAD_END)
        if end < 0:
            return None
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start = end + len(_HEAD_END)
        length = int(headers.get("content-length", 0))
        if len(self._buffer) < start + length:
            return None
        body = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        method, target, _ = first.split(" ")
        url = urlsplit(target)
        parts = tuple(unquote(part) for part in url.path.strip("/").split("/"))
        query = dict(parse_qsl(url.query))
        return Request(method, parts, query, headers.get("content-type", ""), body, Stream(transport))


async def listen(answer: Callable[[Request], Answer]) -> tuple[asyncio.Server, int]:
    """Serve on a free port of loopback; return the server and its port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answer), "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    return server, port
