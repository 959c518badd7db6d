"""Our client certificate and the authorities the agents' certificates must come from, as they are on disk now.

Why this exists: gRPC's Python client never re-reads certificates, so each new connection asks here. A file that is
broken or half written keeps the last good set and shows as `problem`.
"""

import logging

import grpc

from common.logging import fields
from common.tls_files import TlsFiles, TlsFilesError

log = logging.getLogger(__name__)


class ClientCredentials:
    """Channel credentials from files, made again when one of the files changed."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files now. Raises `TlsFilesError`."""
        self.problem = ""
        self._files = files
        self._stamps = files.stamps()
        self._credentials = self._load()

    def current(self) -> grpc.ChannelCredentials:
        """Return the newest good credentials; reads files, so it belongs into a thread. Never raises."""
        try:
            stamps = self._files.stamps()
            if stamps != self._stamps or self.problem:
                self._credentials = self._load()
                self._stamps = stamps
            self.problem = ""
        except TlsFilesError as error:
            if self.problem != str(error):
                log.warning(
                    "TLS files cannot be read, the last good ones stay in use", extra=fields(problem=str(error))
                )
            self.problem = str(error)
        return self._credentials

    def _load(self) -> grpc.ChannelCredentials:
        contents = self._files.read()
        return grpc.ssl_channel_credentials(contents.authorities, contents.key, contents.certificate)
