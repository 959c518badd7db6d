"""Network addresses as text.

Why this exists: settings, logs and calls spell the address of one thing the same way, so that people can search for it.
"""

import socket

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- recognised, not listened on


def join_address(host: str, port: int) -> str:
    """Return `host:port`, or `[v6]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_host(host: str) -> str:
    """Return where a listener on this machine that was given `host` can be asked: loopback, when it takes any."""
    return _ANY.get(host, host)


def canonical_ip(text: str) -> str:
    """Return the canonical spelling of an IPv4 or IPv6 address; raises `ValueError` when it is none."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text))
    except (OSError, UnicodeEncodeError) as error:
        raise ValueError from error
