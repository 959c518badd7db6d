"""Certificate, key and authorities of a program, as they are on disk now.

Why this exists: certificates are rotated while programs run, and gRPC takes any bytes as a certificate only to fail at
each handshake. Here a broken or half-written file is an error that names it, and a changed one is noticed without being
read.
"""

import os
import ssl
from dataclasses import dataclass


class TlsFilesError(Exception):
    """The TLS files cannot be used; `str()` names the file or pair and what is wrong."""


@dataclass(frozen=True, slots=True)
class TlsContents:
    """What the files hold, PEM, checked to fit together."""

    authorities: bytes
    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: the authorities of the other side, our certificate with its chain, and its key."""

    authorities: str
    certificate: str
    key: str

    def stamps(self) -> tuple[tuple[int, int, int], ...]:
        """Return what differs once a file was written or replaced. Raises `TlsFilesError`."""
        found = []
        for path in (self.authorities, self.certificate, self.key):
            try:
                status = os.stat(path)
            except OSError as error:
                raise TlsFilesError(f"{path}: {os.strerror(error.errno or 0)}") from None
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def read(self) -> TlsContents:
        """Read and check the files. Raises `TlsFilesError`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # only asked whether it can load them
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{self.certificate} with {self.key}: {error.strerror or error}") from None
        try:
            context.load_verify_locations(self.authorities)
            return TlsContents(_content(self.authorities), _content(self.certificate), _content(self.key))
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{self.authorities}: {error.strerror or error}") from None


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
