"""Requests to one API server: connections, credentials, time limits, repetitions and the errors that come of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Self
from urllib.parse import urlencode

import msgspec
from yarl import URL

from controller.kube.access import Access
from controller.kube.errors import (
    AccessConfigError,
    ApiUnavailable,
    KubeError,
    RetryLater,
    Unauthorized,
    error_from_answer,
)
from controller.kube.http_library import aiohttp
from controller.kube.lean import LeanPool
from controller.kube.reach import Reach, Watch
from controller.kube.retry import ONCE, Retry

JSON = "application/json"

_READ_CHUNK_LIMIT_BYTES = 1 << 20
_RELOAD_PAUSE_SECONDS = 10.0
_CONNECT_SECONDS = 10.0


class KubeTransport:
    """One connection pool to one API server. Safe to share between tasks of one event loop.

    Every method raises a KubeError; `timeout_seconds` limits one attempt, not the repetitions.
    """

    def __init__(self, access: Access, *, user_agent: str = "cocoon-node-controller", pool_size: int = 100) -> None:
        """Opens nothing; connections are made when needed. Close with `close` or use as a context manager."""
        self._access = access
        self._user_agent = user_agent
        self._pool_size = pool_size
        self._session: aiohttp.ClientSession | None = None
        self._retired: list[aiohttp.ClientSession] = []
        self._lean: LeanPool | None = None
        self._reach = Reach()
        self._base = ""
        self._server_name: str | None = None
        self._proxy: str | None = None
        self._reload_lock = asyncio.Lock()
        self._reloaded_at = float("-inf")

    async def __aenter__(self) -> Self:
        """Nothing is opened yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections; running requests fail with ApiUnavailable."""
        if self._session is not None:
            self._retired.append(self._session)
            self._session = None
        if self._lean is not None:
            self._lean.close()
        await self._close_retired()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = JSON,
        timeout_seconds: float = 10.0,
        retry: Retry = ONCE,
        lean: bool = False,
    ) -> bytes:
        """Send one request, repeated as `retry` allows, and return the body of the 2xx answer.

        `body` is sent as it is when it is bytes and as JSON otherwise. A 401 makes the credentials be read again once.
        `lean` is for small requests that are sent so often that their cost counts (see `lean`).
        """
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        attempt = 1
        renewed = False
        while True:
            started_at = time.monotonic()
            try:
                pool = self._lean if lean and not self._proxy else None
                if pool is not None:
                    return await self._send_lean(pool, method, path, query, data or b"", content_type, timeout_seconds)
                return await self._send(method, path, query, data, content_type, timeout)
            except Unauthorized as exc:
                if renewed or not await self._renew_credentials(started_at, exc):
                    raise
                renewed = True
            except RetryLater as exc:
                if isinstance(exc, ApiUnavailable):
                    self._reach.failed(started_at)
                if not retry.allows(attempt, exc):
                    raise
                await asyncio.sleep(retry.delay_seconds(attempt, exc))
                attempt += 1

    @asynccontextmanager
    async def stream_bytes(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        inactivity_seconds: float = 70.0,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a long GET, such as a watch, and give its body in pieces as they arrive, cut anywhere.

        The pieces end when the server ends the answer. ApiUnavailable when nothing arrives for `inactivity_seconds`,
        the connection breaks or may have broken unnoticed (see `reach`). Leaving the context closes the connection. A
        failed attempt is not repeated.
        """
        request = f"GET {path}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=inactivity_seconds)
        try:
            async with self._reach.watching() as watch:
                # The rest of a watch never ends: closing, not draining, gives the connection up.
                with closing(await self._open_stream(path, query, timeout)) as answer:
                    if answer.status >= 300:
                        raise await _error(answer, request)
                    yield _pieces(answer.content, request, watch)
        except TimeoutError as exc:
            raise ApiUnavailable("silent while requests failed", reason="Timeout", request=request) from exc

    async def _open_stream(
        self, path: str, query: Mapping[str, str] | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        try:
            started_at = time.monotonic()
            answer = await self._open("GET", path, query, None, JSON, timeout)
            if answer.status == 401 and await self._renew_credentials(started_at, await _error(answer, f"GET {path}")):
                answer = await self._open("GET", path, query, None, JSON, timeout)
        except (aiohttp.ClientError, OSError) as exc:
            raise _unavailable(f"GET {path}", exc) from exc
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> bytes:
        request = f"{method} {path}"
        try:
            answer = await self._open(method, path, query, data, content_type, timeout)
            try:
                if answer.status >= 300:
                    raise await _error(answer, request)
                return await answer.read()
            finally:
                answer.release()
        except (aiohttp.ClientError, OSError) as exc:
            raise _unavailable(request, exc) from exc

    async def _send_lean(
        self,
        pool: LeanPool,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes,
        content_type: str,
        timeout_seconds: float,
    ) -> bytes:
        request = f"{method} {path}"
        headers = await self._headers(content_type)
        suffix = f"?{urlencode(query)}" if query else ""
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await pool.request(method, path + suffix, headers, data)
        except OSError as exc:
            raise _unavailable(request, exc) from exc
        self._reach.answered()
        if answer.status >= 300:
            raise error_from_answer(answer.status, answer.body, request=request, retry_after=answer.retry_after)
        return answer.body

    async def _headers(self, content_type: str | None) -> dict[str, str]:
        headers = {"Accept": JSON, "User-Agent": self._user_agent, "Accept-Encoding": "identity"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        authorization = await self._access.authorization()
        if authorization:
            headers["Authorization"] = authorization
        return headers

    async def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        data: bytes | None,
        content_type: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = await self._headers(content_type if data is not None else None)
        session = self._session or await self._open_session()
        suffix = f"?{urlencode(query)}" if query else ""
        answer = await session.request(
            method,
            URL(f"{self._base}{path}{suffix}", encoded=True),
            data=data,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
            proxy=self._proxy,
            server_hostname=self._server_name,
        )
        self._reach.answered()
        return answer

    async def _open_session(self) -> aiohttp.ClientSession:
        # Loading the system's trust store takes 20 ms, too long for the loop that leases live on.
        context = await asyncio.to_thread(self._access.ssl_context)
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._pool_size, ssl=context if context is not None else True, keepalive_timeout=60.0
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_CHUNK_LIMIT_BYTES,
                auto_decompress=True,
            )
            self._base, self._server_name, self._proxy = (
                self._access.base_url,
                self._access.server_name,
                self._access.proxy,
            )
            if self._lean is not None:
                self._lean.close()
            self._lean = LeanPool(self._base, context, self._server_name)
        return self._session

    async def _renew_credentials(self, started_at: float, refusal: KubeError) -> bool:
        """Read the credentials again after a request of `started_at` was refused for them.

        At most every 10 s for all requests together; False when that was done before this request. Raises Unauthorized
        when they cannot be read.
        """
        async with self._reload_lock:
            if self._reloaded_at > started_at:
                return True
            if time.monotonic() - self._reloaded_at < _RELOAD_PAUSE_SECONDS:
                return False
            self._reloaded_at = time.monotonic()
            try:
                await self._access.reload()
            except AccessConfigError as exc:
                message = f"{refusal}; and the credentials cannot be read again: {exc}"
                raise Unauthorized(message, reason=refusal.reason, status_code=401) from exc
            await self._close_retired()
            if self._session is not None:
                # Requests that are under way may end on the old session; the next renewal closes it.
                self._retired.append(self._session)
                self._session = None
            if self._lean is not None:
                # The next request makes a new one, with the new client certificate.
                self._lean.close()
                self._lean = None
            return True

    async def _close_retired(self) -> None:
        while self._retired:
            await self._retired.pop().close()


async def _error(answer: aiohttp.ClientResponse, request: str) -> KubeError:
    body = await answer.read()
    return error_from_answer(answer.status, body, request=request, retry_after=answer.headers.get("Retry-After"))


def _unavailable(request: str, cause: Exception) -> ApiUnavailable:
    reason = "Timeout" if isinstance(cause, TimeoutError) else "ApiUnavailable"
    text = str(cause) or type(cause).__name__
    return ApiUnavailable(f"no answer from the API server: {text}", reason=reason, request=request)


async def _pieces(content: aiohttp.StreamReader, request: str, watch: Watch) -> AsyncIterator[bytes]:
    try:
        async for piece in content.iter_any():
            watch.heard_at = time.monotonic()
            yield piece
    except (aiohttp.ClientError, OSError) as exc:
        raise _unavailable(request, exc) from exc
