"""Which agents there are: a fixed list, a file, DNS. EndpointSlices are in `endpointslices.py`.

Why this exists: the fleet changes while the controller runs. Every source publishes the whole set it knows whenever
that set changes, and keeps the last good set when a look fails or comes back empty: an agent that is not listed for a
moment is not gone, and dialling an address that no longer answers costs nothing and writes nothing.
"""

import asyncio
import ipaddress
import logging
import os
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import aiodns
import pycares

from common.addresses import join_address
from common.kubernetes_names import is_node_name
from common.logging import fields
from controller.agents.endpoints import (
    AgentEndpoint,
    EndpointError,
    parse_endpoints,
    shown,
    split_address,
)

log = logging.getLogger(__name__)

Publish = Callable[[tuple[AgentEndpoint, ...]], None]

_CONCURRENT_QUERIES = 16
_QUERY_SECONDS = 5.0
_QUERY_TRIES = 2


class AgentSource(Protocol):
    """One way of finding agents."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    @property
    def problem(self) -> str:
        """What a person should know about the last look; empty while it worked."""
        ...

    @property
    def answered(self) -> bool:
        """Whether a set was published since the start."""
        ...

    async def run(self, publish: Publish) -> None:
        """Publish the whole set now and at each change, until cancelled."""
        ...


class StaticList:
    """The agents named on the command line or in the environment; never changes."""

    def __init__(self, endpoints: Sequence[AgentEndpoint]) -> None:
        """Take the parsed list."""
        self.name = "list"
        self.problem = ""
        self.answered = False
        self._endpoints = tuple(endpoints)

    async def run(self, publish: Publish) -> None:
        """Publish the list once and wait to be cancelled."""
        publish(self._endpoints)
        self.answered = True
        await asyncio.Event().wait()


class EndpointsFile:
    """The agents named in a file, one `name=host:port` a line, read again when the file changes.

    A broken or missing file keeps the last good list; the problem is logged once and shown until it is mended.
    """

    def __init__(self, path: str, poll_seconds: float = 2.0) -> None:
        """Watch `path` by its modification time, inode and size, which follow a swapped symbolic link too."""
        self.name = f"file {path}"
        self.problem = ""
        self.answered = False
        self._path = path
        self._poll_seconds = poll_seconds
        self._seen: tuple[int, int, int] | None = None

    async def run(self, publish: Publish) -> None:
        """Publish the file's list now and at each change."""
        while True:
            try:
                text = await asyncio.to_thread(self._read_if_changed)
                if text is not None:
                    publish(parse_endpoints(text, self._path))
                    self.answered, self.problem = True, ""
            except OSError as error:
                _tell(self, f"{self._path}: {os.strerror(error.errno or 0)}")
            except (UnicodeDecodeError, EndpointError) as error:
                _tell(self, f"{self._path}: {error}")
            await asyncio.sleep(self._poll_seconds)

    def _read_if_changed(self) -> str | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            self._seen = None
            raise
        state = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if state == self._seen:
            return None
        # Remembered before parsing: a broken file is told once, not at every look.
        self._seen = state
        with open(self._path, encoding="utf-8") as file:
            return file.read()


class DnsNames:
    """The agents behind one DNS name.

    `_service._proto.domain` is asked for SRV records: the port and the node name (first label of the target) come from
    them. Any other `host[:port]` is asked for addresses, which come without a node name and so without TLS.
    """

    def __init__(self, name: str, resolver: aiodns.DNSResolver, refresh_seconds: float = 30.0) -> None:
        """Ask `resolver`, which the caller closes, every `refresh_seconds`. Raises `EndpointError` on a bad name."""
        self.name = f"DNS {name}"
        self.problem = ""
        self.answered = False
        self._is_srv = name.startswith("_")
        self._host, self._port = (name, 0) if self._is_srv else split_address(name)
        self._resolver = resolver
        self._refresh_seconds = refresh_seconds
        self._slots = asyncio.Semaphore(_CONCURRENT_QUERIES)

    async def run(self, publish: Publish) -> None:
        """Publish what the name stands for, now and at each change."""
        published: tuple[AgentEndpoint, ...] = ()
        while True:
            try:
                found = tuple(sorted(await (self._from_srv() if self._is_srv else self._from_addresses())))
            except aiodns.error.DNSError as error:
                _tell(self, f"{self.name}: {error.args[-1]}")
            else:
                if not found:
                    _tell(self, f"{self.name}: no usable record")
                elif found != published:
                    publish(found)
                    published = found
                if found:
                    self.answered, self.problem = True, ""
            await asyncio.sleep(self._refresh_seconds * random.uniform(0.9, 1.1))  # noqa: S311 - spreads load only

    async def _from_addresses(self) -> list[AgentEndpoint]:
        return [
            AgentEndpoint("", join_address(address, self._port), self.name)
            for address in await self._resolve(self._host)
        ]

    async def _from_srv(self) -> Iterable[AgentEndpoint]:
        result = await self._query(self._host, "SRV")
        known = _addresses(result.additional)
        targets = [
            (record.data.target.rstrip("."), record.data.port)
            for record in result.answer
            if isinstance(record.data, pycares.SRVRecordData) and 0 < record.data.port <= 65535
        ]
        found = await asyncio.gather(*(self._endpoint(target, port, known) for target, port in targets))
        return [endpoint for endpoint in found if endpoint is not None]

    async def _endpoint(self, target: str, port: int, known: dict[str, list[str]]) -> AgentEndpoint | None:
        node_name = target.partition(".")[0].lower()
        if not is_node_name(node_name):
            log.warning("ignored a DNS record", extra=fields(source=self.name, target=shown(target)))
            return None
        try:
            addresses = known.get(target.lower()) or await self._resolve(target)
        except aiodns.error.DNSError:
            # One target without an address must not hide the others; gRPC is given the name and says the rest.
            addresses = [target]
        return AgentEndpoint(node_name, join_address(addresses[0], port), self.name)

    async def _resolve(self, host: str) -> list[str]:
        """Return the host's addresses, IPv4 ones when there are any."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        try:
            found = _addresses((await self._query(host, "A")).answer)
        except aiodns.error.DNSError:
            found = {}
        if not found:
            found = _addresses((await self._query(host, "AAAA")).answer)
        return sorted(address for addresses in found.values() for address in addresses)

    async def _query(self, host: str, kind: str) -> pycares.DNSResult:
        async with self._slots:
            return await self._resolver.query_dns(host, kind)


def make_resolver(server: str = "") -> aiodns.DNSResolver:
    """Return a resolver asking the system's name servers, or only `server` (`host` or `host:port`)."""
    servers = [server] if server else None
    return aiodns.DNSResolver(nameservers=servers, timeout=_QUERY_SECONDS, tries=_QUERY_TRIES)


def _addresses(records: Iterable[pycares.DNSRecord]) -> dict[str, list[str]]:
    """Addresses by lower-case owner name, IPv4 before IPv6."""
    v4: dict[str, list[str]] = {}
    v6: dict[str, list[str]] = {}
    for record in records:
        name = record.name.rstrip(".").lower()
        if isinstance(record.data, pycares.ARecordData):
            v4.setdefault(name, []).append(record.data.addr)
        elif isinstance(record.data, pycares.AAAARecordData):
            v6.setdefault(name, []).append(record.data.addr)
    return {**v6, **v4}


def _tell(source: "EndpointsFile | DnsNames", problem: str) -> None:
    """Log a problem when it appears or changes, not at each look."""
    if source.answered:
        problem += "; the last good list is kept"
    if source.problem != problem:
        log.warning("agents could not be looked up", extra=fields(source=source.name, problem=problem))
    source.problem = problem
