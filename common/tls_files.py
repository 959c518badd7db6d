"""Certificate, key and authorities of a program, as they are on disk now.

Why this exists: certificates are rotated while programs run, and gRPC takes any bytes as a certificate only to fail at
each handshake. Here a broken or half-written file is an error that names it, and exactly those bytes that were checked
are handed out, whatever is written meanwhile.
"""

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from common.certificates import Certificate, CertificateError, read_certificates

_MAX_BYTES = 1024 * 1024


class TlsFilesError(Exception):
    """The TLS files cannot be used; `str()` names the file or pair and what is wrong."""


@dataclass(frozen=True, slots=True)
class TlsContents:
    """What the files hold, PEM, checked to fit together; `chain` and `trusted` are its certificates as read."""

    authorities: bytes
    certificate: bytes
    key: bytes
    chain: tuple[Certificate, ...]
    trusted: tuple[Certificate, ...]

    @property
    def certificate_ends_at(self) -> float:
        """When the certificate, or one that it hangs on, runs out; Unix seconds."""
        return min(each.ends_at for each in self.path)

    @property
    def path(self) -> tuple[Certificate, ...]:
        """The certificate and those it hangs on.

        Its authority counts when it is among those trusted here, as in fleets with one authority for both sides.
        """
        issuers = [each for each in self.trusted if each.subject == self.chain[-1].issuer]
        return (*self.chain, *sorted(issuers, key=lambda each: each.ends_at)[-1:])

    @property
    def last_authority(self) -> Certificate:
        """The authority that runs out last: while they are replaced, an old one may run out beside a new one."""
        return max(self.trusted, key=lambda each: each.ends_at)

    @property
    def authorities_end_at(self) -> float:
        """When the last authority runs out; Unix seconds."""
        return self.last_authority.ends_at


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: the authorities of the other side, our certificate with its chain, and its key."""

    authorities: str
    certificate: str
    key: str

    def stamps(self) -> tuple[os.stat_result, ...]:
        """Return what the system says of each file. Raises `TlsFilesError`."""
        found = []
        for path in (self.authorities, self.certificate, self.key):
            try:
                found.append(os.stat(path))
            except OSError as error:
                raise TlsFilesError(f"{path}: {os.strerror(error.errno or 0)}") from None
        return tuple(found)

    def read(self) -> TlsContents:
        """Read and check the files. Raises `TlsFilesError`."""
        authorities, certificate, key = (_content(path) for path in (self.authorities, self.certificate, self.key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # only asked whether it can load them
        try:
            with _in_memory(certificate) as certificate_copy, _in_memory(key) as key_copy:
                # With a password of our own an encrypted key is an error, not a question on somebody's terminal.
                context.load_cert_chain(certificate_copy, key_copy, password="")
        except (OSError, ssl.SSLError) as error:
            raise TlsFilesError(f"{self.certificate} with {self.key}: {_reason(error)}") from None
        try:
            context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
        except (OSError, ssl.SSLError, ValueError) as error:
            raise TlsFilesError(f"{self.authorities}: {_reason(error)}") from None
        return TlsContents(
            authorities,
            certificate,
            key,
            _certificates(self.certificate, certificate),
            _certificates(self.authorities, authorities),
        )


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TlsFilesError(f"{path}: {os.strerror(error.errno or 0)}") from None
    if len(content) > _MAX_BYTES:
        raise TlsFilesError(f"{path}: larger than 1 MiB, so no certificate or key")
    return content


def _certificates(path: str, content: bytes) -> tuple[Certificate, ...]:
    try:
        return read_certificates(content)
    except CertificateError as error:
        raise TlsFilesError(f"{path}: {error}") from None


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Give a path under which exactly these bytes are found: OpenSSL's loader takes paths only."""
    descriptor = os.memfd_create("tls")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or error)
