"""Our client certificate and the CA the agents' certificates must come from, as they are on disk now.

Why this exists: gRPC's Python client never re-reads certificates, so each new connection asks here. A file that is
broken or half written keeps the last good set and shows as `problem`.
"""

import logging
import os
import ssl
from dataclasses import dataclass

import grpc

from common.logging import fields

log = logging.getLogger(__name__)


class TlsFilesError(Exception):
    """The TLS files cannot be used; `str()` says which and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: the CA of the agents, our client certificate (with its chain) and its key."""

    ca: str
    certificate: str
    key: str


class ClientCredentials:
    """Channel credentials from `TlsFiles`, made again when one of the files changed."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files now. Raises `TlsFilesError`."""
        self.problem = ""
        self._files = files
        self._seen: object = None
        self._credentials: grpc.ChannelCredentials
        self._seen, self._credentials = self._load()

    def current(self) -> grpc.ChannelCredentials:
        """Return the newest good credentials; reads files, so it belongs into a thread. Never raises."""
        if self._state() == self._seen and not self.problem:
            return self._credentials
        try:
            self._seen, self._credentials = self._load()
            self.problem = ""
        except TlsFilesError as error:
            if self.problem != str(error):
                log.warning(
                    "TLS files cannot be read, the last good ones stay in use", extra=fields(problem=str(error))
                )
            self.problem = str(error)
        return self._credentials

    def _state(self) -> tuple[tuple[int, int, int], ...] | None:
        try:
            stats = [os.stat(path) for path in (self._files.ca, self._files.certificate, self._files.key)]
        except OSError:
            return None
        return tuple((stat.st_mtime_ns, stat.st_ino, stat.st_size) for stat in stats)

    def _load(self) -> tuple[object, grpc.ChannelCredentials]:
        state = self._state()
        files = self._files
        try:
            # gRPC accepts any bytes and fails at each handshake; OpenSSL tells at once whether they fit together.
            context = ssl.create_default_context(cafile=files.ca)
            context.load_cert_chain(files.certificate, files.key)
            contents = [_read(path) for path in (files.ca, files.key, files.certificate)]
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{files.ca}, {files.certificate}, {files.key}: {error}") from error
        return state, grpc.ssl_channel_credentials(*contents)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
