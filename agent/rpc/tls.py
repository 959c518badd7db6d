"""The server's side of mutual TLS, with certificates that are read again when their files change.

Why this exists: certificates are rotated while agents run. A new file takes effect for new connections; a broken one,
or a half-written one, keeps the last good certificates and shows in a metric.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import grpc

from common.logging import fields
from common.tls_files import TlsFiles, TlsFilesError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG = logging.getLogger(__name__)


class ReloadingCertificates:
    """The server's credentials from files. `credentials` once; it looks at the files by itself."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._stamps: object = None
        self.failed_reloads = 0

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that follow the files; raises `TlsFilesError` when they cannot be used now."""
        self._stamps = self._files.stamps()
        return grpc.dynamic_ssl_server_credentials(
            self._load(),
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
            stamps = self._files.stamps()
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

    def _load(self) -> grpc.ServerCertificateConfiguration:
        contents = self._files.read()
        return grpc.ssl_server_certificate_configuration([(contents.key, contents.certificate)], contents.authorities)
