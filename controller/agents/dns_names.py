"""Which agents there are, as DNS says.

Why this exists: many fleets name their hosts in DNS already. The rules are those of `discovery.py`; the module is its
own because a resolver is a tenth of what a controller loads at its start, and most ask no DNS.
"""

import asyncio
import ipaddress
import logging
import random
from collections.abc import Iterable

import aiodns
import pycares

from common.addresses import join_address
from common.kubernetes_names import is_node_name
from common.logging import fields
from controller.agents.discovery import Publish, tell_problem
from controller.agents.endpoints import AgentEndpoint, shown, split_address

log = logging.getLogger(__name__)

_CONCURRENT_QUERIES = 16
_QUERY_SECONDS = 5.0
_QUERY_TRIES = 2


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
                tell_problem(self, f"{self.name}: {error.args[-1]}")
            else:
                if not found:
                    tell_problem(self, f"{self.name}: no usable record")
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
