"""What the text of one of the agent's own settings may be, in the manner of `common.setting_values`.

Why this exists: amounts, labels, ages and Unix sockets are settings that only a host has.
"""

import re
from dataclasses import dataclass

from common import setting_values
from common.addresses import canonical_ip, join_address
from common.kubernetes_names import is_name_part, is_node_name
from common.quantity import Quantity, QuantityError, parse_quantity
from common.setting_values import absolute_path

_SPAN = re.compile(r"([0-9]{1,9})([smhdw])")
_SPAN_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where to listen: a host and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    unix_path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it: loopback or a Unix socket."""
        return bool(self.unix_path) or self.host == "localhost" or self.host == "::1" or self.host.startswith("127.")

    def __str__(self) -> str:
        """Return the spelling the setting takes."""
        return f"unix:{self.unix_path}" if self.unix_path else join_address(self.host, self.port)


def cpu_millicores(text: str) -> int:
    """Read a CPU quantity above zero; returns millicores, rounded up."""
    try:
        return _positive(text).millicores()
    except QuantityError:
        raise ValueError from None


def byte_count(text: str) -> int:
    """Read a quantity of bytes above zero, rounded up to a whole byte."""
    return _positive(text).bytes()


def byte_count_or_none(text: str) -> int:
    """Read a quantity of bytes, zero allowed."""
    quantity = _quantity(text)
    if quantity.is_negative():
        raise ValueError
    return quantity.bytes()


def pod_count(text: str) -> int:
    """Read a whole quantity above zero."""
    try:
        return _positive(text).count()
    except QuantityError:
        raise ValueError from None


def node_name(text: str) -> str:
    """Read an RFC 1123 subdomain of at most 63 characters."""
    if not is_node_name(text):
        raise ValueError
    return text


def label_value(text: str) -> str:
    """Read a Kubernetes label value that is not empty."""
    if not is_name_part(text):
        raise ValueError
    return text


def printable_word(text: str) -> str:
    """Read up to 253 printable characters without spaces."""
    if len(text) > 253 or not text.isprintable() or " " in text:
        raise ValueError
    return text


def host_address(text: str) -> str:
    """Read the IPv4 or IPv6 address of one host, in its canonical spelling: neither unspecified nor multicast."""
    address = canonical_ip(text)
    first = address.partition(".")[0]
    is_multicast = address.startswith("ff") if ":" in address else int(first) >= 224
    if is_multicast or first == "0" or address == "::":
        raise ValueError
    return address


def listen_addresses(text: str) -> tuple[ListenAddress, ...]:
    """Read a comma-separated list of `HOST:PORT`, `[IPV6]:PORT` and `unix:PATH`."""
    return tuple(listen_address(part.strip()) for part in text.split(","))


def listen_address(text: str) -> ListenAddress:
    """Read one `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`; port 0 takes any free one."""
    if text.startswith("unix:"):
        return ListenAddress(unix_path=absolute_path(text.removeprefix("unix:")))
    return ListenAddress(*setting_values.listen_address(text))


def span_seconds(text: str) -> int:
    """Read a span of time above zero such as `90s`, `30m`, `72h`, `14d` or `2w`; returns seconds."""
    match = _SPAN.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ValueError
    return int(match[1]) * _SPAN_SECONDS[match[2]]


def words(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of printable words."""
    found = tuple(printable_word(part.strip()) for part in text.split(","))
    if not all(found):
        raise ValueError
    return found


def _quantity(text: str) -> Quantity:
    try:
        return parse_quantity(text)
    except QuantityError:
        raise ValueError from None


def _positive(text: str) -> Quantity:
    quantity = _quantity(text)
    if quantity.nanos <= 0:
        raise ValueError
    return quantity
