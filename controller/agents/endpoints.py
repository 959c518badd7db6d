"""Where an agent is dialled and which name it must have: the rules every way of finding agents shares (pure).

Why this exists: one host must not be able to speak for another. Each address therefore comes with the node name its
certificate and its report must carry; only plain DNS addresses come without one, and those are for plain text on
loopback. Plain text to any other address is refused here, in one place.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from common.addresses import join_address
from common.kubernetes_names import MAX_NODE_NAME, is_node_name

DEFAULT_PORT = 7443
_MAX_SHOWN = 100

_HOST_NAME = re.compile(r"[A-Za-z0-9_](?:[-A-Za-z0-9_.]{0,251}[A-Za-z0-9_.])?")


class EndpointError(ValueError):
    """An agent's address is unusable; `str()` of it names the text and the rule."""


@dataclass(frozen=True, slots=True, order=True)
class AgentEndpoint:
    """One address of one agent.

    `node_name` is the name the agent must have, empty when the source cannot know it (plain DNS addresses).
    `address` is `host:port`, `[v6]:port` or `unix:/path`. `source` says who named it, for people.
    """

    node_name: str
    address: str
    source: str = ""

    def is_local(self) -> bool:
        """Whether the address cannot leave this machine: a Unix socket, a loopback address or `localhost`."""
        if self.address.startswith("unix:"):
            return True
        host, _ = split_address(self.address)
        if host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    def grpc_target(self) -> str:
        """Return the address as a gRPC target; literal addresses bypass gRPC's resolver."""
        if self.address.startswith("unix:"):
            return self.address
        host, port = split_address(self.address)
        try:
            version = ipaddress.ip_address(host).version
        except ValueError:
            return f"dns:///{host}:{port}"
        return f"ipv4:{host}:{port}" if version == 4 else f"ipv6:[{host}]:{port}"


def shown(text: str) -> str:
    """Return the text quoted, cut at 100 characters, fit for a message."""
    return repr(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; a missing port is 7443. Raises `EndpointError`."""
    host, port_text = address, ""
    if address.startswith("["):
        host, closed, rest = address[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise EndpointError(f"{shown(address)}: an IPv6 address is written [address]:port")
        port_text = rest[1:]
    elif ":" in address:
        host, _, port_text = address.partition(":")
        if ":" in port_text:
            raise EndpointError(f"{shown(address)}: an IPv6 address is written [address]:port")
    port = DEFAULT_PORT
    if port_text:
        if not (port_text.isascii() and port_text.isdigit() and 1 <= int(port_text[:6]) <= 65535):
            raise EndpointError(f"{shown(address)}: the port must be a number from 1 to 65535")
        port = int(port_text)
    if not _is_host(host):
        raise EndpointError(f"{shown(address)}: the host must be an IP address or a DNS name")
    return host, port


def parse_endpoint(text: str, source: str = "") -> AgentEndpoint:
    """Read one `name=host:port` (or `name=unix:/path`). Raises `EndpointError`."""
    text = text.strip()
    name, equals, address = text.partition("=")
    name, address = name.strip(), address.strip()
    if not equals or not name or not address:
        raise EndpointError(f"{shown(text)}: an agent is written name=host:port")
    if not is_node_name(name):
        raise EndpointError(
            f"{shown(name)}: a node name is an RFC 1123 subdomain of at most {MAX_NODE_NAME} characters"
        )
    if address.startswith("unix:"):
        if not address.startswith("unix:/") or "\0" in address:
            raise EndpointError(f"{shown(address)}: a Unix socket is written unix:/absolute/path")
        return AgentEndpoint(name, address, source)
    return AgentEndpoint(name, join_address(*split_address(address)), source)


def parse_endpoints(text: str, source: str = "") -> tuple[AgentEndpoint, ...]:
    """Read a list separated by commas or line ends, `#` starting a comment.

    All problems are collected into one `EndpointError`, so that a file is mended in one go. A name given twice is one
    of them: two agents for one node name cannot both be right.
    """
    endpoints: list[AgentEndpoint] = []
    problems: list[str] = []
    for item in _items(text):
        try:
            endpoints.append(parse_endpoint(item, source))
        except EndpointError as error:
            problems.append(str(error))
    problems.extend(f"{shown(name)}: named more than once" for name in _repeated(e.node_name for e in endpoints))
    if problems:
        raise EndpointError("; ".join(problems))
    return tuple(sorted(endpoints))


def plain_text_problem(endpoint: AgentEndpoint, tls: bool) -> str:
    """Return why this endpoint may not be dialled, or an empty text."""
    if tls and not endpoint.node_name:
        return "with TLS every address needs the node name its certificate must carry; plain DNS addresses have none"
    if not tls and not endpoint.is_local():
        return "plain text is only allowed to loopback addresses and Unix sockets; set the TLS files"
    return ""


def _items(text: str) -> Iterable[str]:
    for line in text.splitlines():
        for item in line.partition("#")[0].split(","):
            if item.strip():
                yield item


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return sorted({name for name in names if name in seen or seen.add(name)})  # type: ignore[func-returns-value]


def _is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return ":" not in host and _HOST_NAME.fullmatch(host) is not None
    return True
