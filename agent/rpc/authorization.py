"""Who may call what.

Why this exists: reading a host's numbers and removing customers' snapshots are two different powers. Over mutual TLS
the names in the client's certificate decide; on loopback and Unix sockets everyone who gets there may do everything.
"""

from collections.abc import Iterable
from functools import lru_cache

import grpc

from agent.rpc.errors import ApiError
from agent.rpc.limits import Kind
from common.certificates import CertificateError, read_certificates

_CERTIFICATE_KEY = "x509_pem_cert"
# More callers than that read each time what their certificates say; nothing else changes.
_CALLERS_REMEMBERED = 256


class Authorization:
    """Decides by role. Without TLS (`mutual_tls` false) and on Unix sockets every caller is a controller."""

    def __init__(self, controller_names: Iterable[str], viewer_names: Iterable[str], *, mutual_tls: bool) -> None:
        self.mutual_tls = mutual_tls
        self._controllers = frozenset(controller_names)
        self._viewers = frozenset(viewer_names)

    def check(self, context: grpc.aio.ServicerContext[object, object], kind: Kind) -> None:
        """Return when the caller may make calls of this kind; raises `ApiError` NOT_AUTHORIZED."""
        if not self.mutual_tls or context.peer().startswith("unix:"):
            return
        names = _names(context)
        if names & self._controllers or (kind is not Kind.CHANGE and names & self._viewers):
            return
        raise ApiError(
            grpc.StatusCode.PERMISSION_DENIED,
            "NOT_AUTHORIZED",
            f"none of the certificate's names may make {kind.value}; see COCOON_NODE_TLS_CONTROLLER_NAMES and"
            " COCOON_NODE_TLS_VIEWER_NAMES on this host",
        )

    def identity(self, context: grpc.aio.ServicerContext[object, object]) -> str:
        """Return who calls: the certificate's names, or without TLS the host the call comes from."""
        if self.mutual_tls:
            return ",".join(sorted(_names(context)))
        return context.peer().rpartition(":")[0]


def _names(context: grpc.aio.ServicerContext[object, object]) -> frozenset[str]:
    return _names_in(next(iter(context.auth_context().get(_CERTIFICATE_KEY, ())), b""))


@lru_cache(maxsize=_CALLERS_REMEMBERED)
def _names_in(pem: bytes) -> frozenset[str]:
    """Return a certificate's names. The library's own list of them ends a name at its first NUL."""
    try:
        return read_certificates(pem)[0].names
    except CertificateError:
        return frozenset()
