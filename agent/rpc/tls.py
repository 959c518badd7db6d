"""The server's side of mutual TLS, with certificates that are read again when their files change.

Why this exists: certificates are rotated while agents run. A new file takes effect for new connections; a broken one,
or a half-written one, keeps the last good certificates and shows in a metric.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from common.logging import fields

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG = logging.getLogger(__name__)


class TlsFilesError(Exception):
    """The TLS files cannot be used; `str()` names the file or pair and what is wrong."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    inode: int
    size: int
    changed_ns: int


class TlsFiles:
    """Certificate chain, key and client authorities, as paths. `credentials` once; it looks at the files by itself."""

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str) -> None:
        self._paths = (cert_file, key_file, client_ca_file)
        self._stamps: tuple[_Stamp, ...] | None = None
        self.failed_reloads = 0

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files; raises `TlsFilesError` when they cannot be used now."""
        configuration = self._load()
        self._stamps = self._look()
        return grpc.dynamic_ssl_server_credentials(
            configuration,
            self._changed,  # type: ignore[arg-type]  # None, "no change", is missing from the stubs
            require_client_authentication=True,
        )

    def collect(self) -> Iterable[Metric]:
        """Return the metric families: a broken file shows here while the last good one serves."""
        from prometheus_client.core import CounterMetricFamily

        return (
            CounterMetricFamily(
                "cocoon_node_failed_tls_reloads", "Readings of changed TLS files that failed.", self.failed_reloads
            ),
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates if the files changed and are good; called for each connection, in its thread."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return None
            configuration = self._load()
        except TlsFilesError as error:
            self.failed_reloads += 1
            _LOG.warning("TLS files not reloaded, the last good ones stay", extra=fields(problem=str(error)))
            return None
        self._stamps = stamps
        _LOG.info("TLS files reloaded")
        return configuration

    def _look(self) -> tuple[_Stamp, ...]:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise TlsFilesError(f"{path}: {os.strerror(error.errno or 0)}") from None
            found.append(_Stamp(status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def _load(self) -> grpc.ServerCertificateConfiguration:
        cert_file, key_file, client_ca_file = self._paths
        # The library takes any bytes and fails at each handshake; the standard one tells now what is wrong.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(cert_file, key_file)
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{cert_file} with {key_file}: {error.strerror or error}") from None
        try:
            context.load_verify_locations(client_ca_file)
            contents = [_content(path) for path in self._paths]
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{client_ca_file}: {error.strerror or error}") from None
        return grpc.ssl_server_certificate_configuration([(contents[1], contents[0])], contents[2])


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
