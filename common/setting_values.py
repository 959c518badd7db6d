"""What the text of a setting may be: one function for each kind of value that settings of both programs have.

Why this exists: every setting comes as text from three places and is refused with the same words. Each function takes
the text and returns the value, or raises a `ValueError` without a text; the rule in words stands in the table of
settings and is all there is to say.
"""

import re
from dataclasses import dataclass

from common.addresses import canonical_ip

_WHOLE = re.compile(r"[0-9]{1,18}")
_VM_PREFIX = re.compile(r"vk-[a-z0-9][-a-z0-9.]{0,200}")

VM_PREFIXES_RULE = "must be a comma-separated list of beginnings of VM names: vk-, then lower case, digits, '-' and '.'"


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


class OneOf:
    """Parser of a fixed set of words."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, text: str) -> str:
        """Return the word."""
        if text not in self.words:
            raise ValueError
        return text


def boolean(text: str) -> bool:
    """Read `true` or `false`."""
    return OneOf("true", "false")(text) == "true"


def absolute_path(text: str) -> str:
    """Read an absolute path of at most 4095 printable characters."""
    if not text.startswith("/") or len(text) > 4095 or not text.isprintable():
        raise ValueError
    return text.rstrip("/") or "/"


def listen_address(text: str) -> tuple[str, int]:
    """Read one `IP:PORT`, `[IPV6]:PORT` or `localhost:PORT`; port 0 takes any free one."""
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError
    number = WholeNumber(0, 65535)(port)
    if host.startswith("[") and host.endswith("]"):
        return canonical_ip(host[1:-1]), number
    if ":" in host:
        raise ValueError
    return host if host == "localhost" else canonical_ip(host), number


def http_address(text: str) -> tuple[str, int] | None:
    """Read `off` (None) or the address of the listener for health and metrics."""
    return None if text == "off" else listen_address(text)


def vm_prefixes(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of beginnings of VM names; an empty text is none of them.

    Each begins with `vk-`, because nothing else is ever purged, and says more than that, because it would trust all.
    """
    prefixes = tuple(part.strip() for part in text.split(",")) if text else ()
    if not all(_VM_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise ValueError
    return prefixes
