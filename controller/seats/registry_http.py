"""Requests to a registry: connections, TLS, limits of time and size, redirects, and how often one is repeated.

Why this exists: a registry is asked hundreds of times while VMs are suspended, and is somebody else's. It may hang,
send without end, ask for a pause or send us elsewhere; none of that may hold a reconcile, fill our memory, or carry a
login to another host.

A general client with its own connection pool costs 2 ms a request when 64 ask at once, half of what the controller then
does at all; the library that talks to the API costs a quarter of that.
"""

import asyncio
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urljoin
from urllib.request import getproxies, proxy_bypass

from yarl import URL

from common.file_stamps import FileStamp, file_stamp
from common.version import VERSION
from controller.kube.http_library import aiohttp
from controller.seats.registry_address import Origin, RegistryConfigError, origin_of

_REPEATED = frozenset({429, 500, 502, 503, 504})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 3
_LONGEST_QUIET_SECONDS = 300.0


class RegistryUnavailable(Exception):  # noqa: N818 -- named after what it says
    """No usable answer. `str()` says why, without secrets."""


@dataclass(frozen=True, slots=True)
class RegistryLimits:
    """Limits: seconds for one question with all it needs, and for one attempt; pauses between; requests at once."""

    total_seconds: float = 20.0
    connect_seconds: float = 5.0
    attempt_seconds: float = 10.0
    attempts: int = 3
    first_delay_seconds: float = 0.2
    longest_delay_seconds: float = 2.0
    at_once: int = 16


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `authorization` goes to the URL's own origin only. `form` is sent as a POST's body."""

    method: str
    url: str
    authorization: str = field(default="", repr=False)
    accept: str = ""
    form: Mapping[str, str] | None = field(default=None, repr=False)
    largest_bytes: int = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: status code, body, and the headers that matter; `is_whole` is false when the body was too long.

    `is_own` is false when a redirect led to another origin.
    """

    status: int
    body: bytes
    is_whole: bool
    is_own: bool
    media_type: str
    digest: str
    challenges: tuple[str, ...]
    retry_after: str
    location: str


@dataclass(slots=True)
class _Pool:
    """Connections made under one state of the authorities' file; closed when retired and no request uses it."""

    session: aiohttp.ClientSession
    stamp: FileStamp | None
    users: int = 0
    is_retired: bool = False


class RegistryHttp:
    """A connection pool for one registry. Safe to share between tasks of one event loop; close with `aclose`."""

    def __init__(
        self,
        origin: Origin,
        *,
        ca_file: str | None = None,
        limits: RegistryLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connects to nothing yet, but reads `ca_file`. Raises `RegistryConfigError`."""
        self._origin = origin
        self._ca_file = ca_file
        self._limits = limits or RegistryLimits()
        self._clock = clock
        self._quiet_until = float("-inf")
        self._pool: _Pool | None = None
        self._building = asyncio.Lock()
        self._slots = asyncio.Semaphore(self._limits.at_once)
        if ca_file is not None:
            _context(ca_file)

    async def aclose(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.session.close()

    async def send(self, request: Request) -> Answer:
        """Send it, again where that may help, and return the answer. Raises `RegistryUnavailable`."""
        limits = self._limits
        for attempt in range(1, limits.attempts + 1):
            if (wait := self._quiet_until - self._clock()) > 0:
                raise RegistryUnavailable(f"the registry asked to be left alone for another {wait:.0f} s")
            try:
                answer = await self._attempt(request)
            except RegistryUnavailable:
                if attempt == limits.attempts:
                    raise
                wish = 0.0
            else:
                if answer.status not in _REPEATED:
                    return answer
                wish = _seconds(answer.retry_after)
                if wish > limits.longest_delay_seconds:
                    self._quiet_until = self._clock() + min(wish, _LONGEST_QUIET_SECONDS)
                    return answer
                if attempt == limits.attempts:
                    return answer
            pause = min(limits.first_delay_seconds * 2.0 ** (attempt - 1), limits.longest_delay_seconds)
            await asyncio.sleep(max(wish, pause * (0.5 + random.random() / 2)))  # noqa: S311 -- spreads load, no secret
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, request: Request) -> Answer:
        async with self._slots:
            pool = await self._current_pool()
            pool.users += 1
            try:
                async with asyncio.timeout(self._limits.attempt_seconds):
                    return await self._follow(pool.session, request)
            except TimeoutError:
                raise RegistryUnavailable(f"no answer within {self._limits.attempt_seconds:g} s") from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    self._retire_if_stale(pool)
                raise RegistryUnavailable(f"no answer: {str(error) or type(error).__name__}") from None
            finally:
                pool.users -= 1
                if pool.is_retired and not pool.users:
                    await pool.session.close()

    async def _follow(self, session: aiohttp.ClientSession, request: Request) -> Answer:
        """Send one request and, if it only reads, again to where it is redirected."""
        url, authorization, is_own = request.url, request.authorization, True
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await _exchange(session, request, url, authorization, is_own=is_own)
            if answer.status not in _REDIRECTS or request.method != "GET" or not answer.location:
                return answer
            source, target = origin_of(url), origin_of(urljoin(url, answer.location))
            if target is None or source is None or (source.scheme == "https" and target.scheme != "https"):
                raise RegistryUnavailable("the registry redirects to where it is not followed: no https")
            if target != source:
                authorization, is_own = "", False
            url = urljoin(url, answer.location)
        raise RegistryUnavailable(f"more than {_MOST_REDIRECTS} redirects")

    async def _current_pool(self) -> _Pool:
        async with self._building:
            if self._pool is None:
                stamp = _stamp(self._ca_file)
                try:
                    # The system's trust store takes 20 ms to load.
                    context = await asyncio.to_thread(_context, self._ca_file)
                except RegistryConfigError as error:
                    raise RegistryUnavailable(str(error)) from None
                self._pool = _Pool(self._open(context), stamp)
            return self._pool

    def _open(self, context: ssl.SSLContext) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.at_once, ssl=context, keepalive_timeout=30.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._limits.connect_seconds),
            headers={"User-Agent": f"cocoon-node-controller/{VERSION}", "Accept-Encoding": "identity"},
            # A registry's session is not ours to keep, and what it packs unasked could unpack without end.
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    def _retire_if_stale(self, pool: _Pool) -> None:
        """The authorities' file may have been replaced since: have the next attempt read it again."""
        if pool is self._pool and self._ca_file is not None and _stamp(self._ca_file) != pool.stamp:
            pool.is_retired = True
            self._pool = None


async def _exchange(
    session: aiohttp.ClientSession, request: Request, url: str, authorization: str, *, is_own: bool
) -> Answer:
    headers = {"Accept": request.accept or "*/*"} | ({"Authorization": authorization} if authorization else {})
    target = URL(url, encoded=True)
    async with session.request(
        request.method, target, headers=headers, data=request.form, allow_redirects=False, proxy=_proxy(target)
    ) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > request.largest_bytes:
                response.close()
                break
        known = response.headers
        return Answer(
            status=response.status,
            body=bytes(body),
            is_whole=len(body) <= request.largest_bytes and known.get("content-encoding", "identity") == "identity",
            is_own=is_own,
            media_type=known.get("content-type", "").partition(";")[0].strip().lower(),
            digest=known.get("docker-content-digest", ""),
            challenges=tuple(known.getall("www-authenticate", [])),
            retry_after=known.get("retry-after", ""),
            location=known.get("location", ""),
        )


def _proxy(url: URL) -> str | None:
    """Return the proxy of the environment for a URL; the library's own look there would send logins of a netrc too."""
    origin = origin_of(str(url))
    if origin is None or origin.is_loopback:
        return None
    proxy = getproxies().get(url.scheme)
    return None if proxy is None or proxy_bypass(origin.host) else proxy


def _seconds(header: str) -> float:
    """Return the pause a server asked for, by a number or a date; 0 when it did not or cannot be read."""
    try:
        return max(0.0, min(float(header), 1e9)) if header.strip() else 0.0
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError, OSError):
        return 0.0


def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        problem = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error)
        raise RegistryConfigError("InvalidRegistryAuthorities", f"{ca_file}: {problem}") from None


def _stamp(path: str | None) -> FileStamp | None:
    try:
        return None if path is None else file_stamp(os.stat(path))
    except OSError:
        return None
