"""A small HTTP/1.1 listener for /healthz, /readyz and /metrics.

Why this exists: three fixed pages on the event loop that is already there need no web framework, and none starts as
fast. Everything a stranger could use to hold it up is bounded: connections, header bytes, and time. Each connection
carries one request and is closed. A crowd costs the caller that has most of the places, so that one host's idle
connections never keep a probe's question out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from common.addresses import join_address
from common.tasks import end_tasks

_LOG = logging.getLogger(__name__)
_MAX_HEADER_BYTES = 8192
MAX_CONNECTIONS = 32
_SECONDS_PER_REQUEST = 10.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: status code, body, content type."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], Awaitable[Page]]


def health_routes(unready_reasons: Callable[[], Sequence[str]], metrics: Route) -> dict[str, Route]:
    """Return the routes of a program; `unready_reasons` gives one sentence for each thing still missing."""

    async def healthz() -> Page:
        # Answered by the event loop that everything runs on: no answer is the sign of trouble.
        return Page(200, b"ok\n")

    async def readyz() -> Page:
        reasons = unready_reasons()
        if not reasons:
            return Page(200, b"ok\n")
        return Page(503, "".join(f"{reason}\n" for reason in reasons).encode())

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


class HttpListener:
    """Serves GET and HEAD of fixed paths; `start` binds, `close` ends every connection and waits for it.

    `on_drop` is told of each connection that was given up for another one.
    """

    def __init__(self, routes: Mapping[str, Route], on_drop: Callable[[], object] = bool) -> None:
        self._routes = dict(routes)
        self._on_drop = on_drop
        self._server: asyncio.Server | None = None
        # The oldest first, with the host that each comes from.
        self._connections: dict[asyncio.Task[None], str] = {}
        self._given_up: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> str:
        """Bind and listen; return the bound address as `host:port`. Raises `OSError` when the address is not free."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=_MAX_HEADER_BYTES)
        return join_address(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        """Stop listening and end what is still open."""
        if self._server is None:
            return
        self._server.close()
        await end_tasks((*self._connections, *self._given_up))
        await self._server.wait_closed()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain function: asyncio's own task for a coroutine callback could not be awaited in close().
        if len(self._connections) >= MAX_CONNECTIONS:
            self._drop_one()
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        peer = writer.get_extra_info("peername")
        self._connections[task] = peer[0] if peer else ""

        def ended(task: "asyncio.Task[None]") -> None:
            self._connections.pop(task, None)
            self._given_up.discard(task)
            # After an orderly close this does nothing; otherwise it drops what the caller never took. Here, because a
            # task that is cancelled before its first step runs no `finally`.
            writer.transport.abort()

        task.add_done_callback(ended)

    def _drop_one(self) -> None:
        """Give up the oldest connection of the host that has most; an honest request is over long before it is that."""
        (greediest, _), *_ = Counter(self._connections.values()).most_common(1)
        oldest = next(task for task, host in self._connections.items() if host == greediest)
        del self._connections[oldest]
        self._given_up.add(oldest)
        oldest.cancel()
        self._on_drop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS_PER_REQUEST):
                method, page = await self._answer(reader)
                writer.write(_encoded(page, with_body=method != "HEAD"))
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            pass  # The caller has gone away or never finished its request; nobody is left to be told.

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, Page]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return "", Page(400, b"not a request this listener takes\n")
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "", Page(400, b"not a request this listener takes\n")
        method, path = words[0].decode("latin-1"), words[1].split(b"?", 1)[0].decode("latin-1")
        route = self._routes.get(path)
        if route is None:
            return method, Page(404, "".join(f"{known}\n" for known in sorted(self._routes)).encode())
        if method not in {"GET", "HEAD"}:
            return method, Page(405, b"only GET and HEAD\n")
        try:
            return method, await route()
        except Exception:
            _LOG.exception("page failed")
            return method, Page(500, b"internal error\n")


def _encoded(page: Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_REASONS.get(page.status, 'Unknown')}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    ).encode("latin-1")
    return head + page.body if with_body else head
