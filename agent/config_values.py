"""What the text of a setting may be: one function for each kind of value.

Why this exists: every setting comes as text from three places and is refused with the same words. Each function takes
the text and returns the value, or raises a `ValueError` without a text; the rule in words stands in the table of
settings and is all there is to say.
"""

import re
import socket
from dataclasses import dataclass

from common.quantity import Quantity, QuantityError, parse_quantity

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_WHOLE = re.compile(r"[0-9]{1,18}")
_SPAN = re.compile(r"([0-9]{1,9})([smhdw])")
_SPAN_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NAME_PREFIX = re.compile(r"[a-z0-9][-a-z0-9.]*")


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
        if self.unix_path:
            return f"unix:{self.unix_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """Parser of a whole number in a range."""

    lowest: int
    highest: int

    def __call__(self, text: str) -> int:
        """Return the number."""
        if not _WHOLE.fullmatch(text) or not self.lowest <= int(text) <= self.highest:
            raise ValueError
        return int(text)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Parser of a fixed set of words."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> str:
        """Return the word."""
        if text not in self.words:
            raise ValueError
        return text


def boolean(text: str) -> bool:
    """Read `true` or `false`."""
    return OneOf(("true", "false"))(text) == "true"


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
    if len(text) > 63 or not _SUBDOMAIN.fullmatch(text):
        raise ValueError
    return text


def label_value(text: str) -> str:
    """Read a Kubernetes label value that is not empty."""
    if not _LABEL_VALUE.fullmatch(text):
        raise ValueError
    return text


def ip_address(text: str) -> str:
    """Read an IPv4 or IPv6 address; returns its canonical spelling."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text))
    except (OSError, UnicodeEncodeError, ValueError) as error:
        raise ValueError from error


def printable_word(text: str) -> str:
    """Read up to 253 printable characters without spaces."""
    if len(text) > 253 or not text.isprintable() or " " in text:
        raise ValueError
    return text


def absolute_path(text: str) -> str:
    """Read an absolute path of at most 4095 printable characters."""
    if not text.startswith("/") or len(text) > 4095 or not text.isprintable():
        raise ValueError
    return text.rstrip("/") or "/"


def listen_addresses(text: str) -> tuple[ListenAddress, ...]:
    """Read a comma-separated list of `HOST:PORT`, `[IPV6]:PORT` and `unix:PATH`."""
    return tuple(listen_address(part.strip()) for part in text.split(","))


def listen_address(text: str) -> ListenAddress:
    """Read one `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`; port 0 takes any free one."""
    if text.startswith("unix:"):
        return ListenAddress(unix_path=absolute_path(text.removeprefix("unix:")))
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError
    number = WholeNumber(0, 65535)(port)
    if host.startswith("[") and host.endswith("]"):
        return ListenAddress(host=ip_address(host[1:-1]), port=number)
    if host == "localhost":
        return ListenAddress(host=host, port=number)
    if ":" in host:
        raise ValueError
    return ListenAddress(host=ip_address(host), port=number)


def http_address(text: str) -> ListenAddress | None:
    """Read `off` (None) or one `HOST:PORT`."""
    if text == "off":
        return None
    address = listen_address(text)
    if address.unix_path:
        raise ValueError
    return address


def span_seconds(text: str) -> int:
    """Read a span of time above zero such as `90s`, `30m`, `72h`, `14d` or `2w`; returns seconds."""
    match = _SPAN.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ValueError
    return int(match[1]) * _SPAN_SECONDS[match[2]]


def name_prefixes(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of prefixes of VM names."""
    prefixes = tuple(part.strip() for part in text.split(","))
    if not all(_NAME_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise ValueError
    return prefixes


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
