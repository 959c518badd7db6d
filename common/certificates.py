"""What a certificate says of itself: when it begins and ends to hold, and for which names.

Why this exists: an operator has to hear weeks before a certificate runs out and before the first refused handshake,
and the standard library tells these things of a peer's certificate only. OpenSSL has read the file before; here two
fields are looked up in it, and whatever looks unexpected is an error, never a guess.
"""

import base64
import binascii
import calendar
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _OCTETS, _OBJECT_ID = 0x30, 0x04, 0x06
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_ALTERNATIVE_NAMES = bytes([0x55, 0x1D, 0x11])
_TEXT_NAMES = frozenset({0x81, 0x82, 0x86})  # mail address, DNS name, URI
_IP_ADDRESS = 0x87
_TIME = re.compile(rb"(\d{2}|\d{4})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})Z")


class CertificateError(ValueError):
    """The text holds no certificate that can be understood."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What one certificate says. Times are Unix seconds; `names` are its subject alternative names as text.

    `subject` and `issuer` are as encoded: only good for telling which certificate hangs on which.
    """

    begins_at: float
    ends_at: float
    names: frozenset[str]
    subject: bytes = b""
    issuer: bytes = b""


def read_certificates(pem: bytes) -> tuple[Certificate, ...]:
    """Return the certificates of a PEM text, in its order. Raises CertificateError, also when one is cut off."""
    blocks = _PEM.findall(pem)
    if not blocks:
        raise CertificateError("there is no certificate in it")
    if len(blocks) != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise CertificateError("its last certificate is cut off")
    return tuple(_certificate(block) for block in blocks)


def _certificate(block: bytes) -> Certificate:
    try:
        encoded = base64.b64decode(block)
    except binascii.Error:
        raise CertificateError("a certificate in it is not base64") from None
    signed = _children(_only(encoded, _SEQUENCE))
    fields = _children(_expect(signed, 0, _SEQUENCE))
    if fields and fields[0][0] == _VERSION:
        fields = fields[1:]
    issuer, subject = _expect(fields, 2, _SEQUENCE), _expect(fields, 4, _SEQUENCE)
    validity = _children(_expect(fields, 3, _SEQUENCE))
    extensions = next((value for tag, value in fields if tag == _EXTENSIONS), None)
    names = frozenset(_alternative_names(extensions)) if extensions is not None else frozenset[str]()
    if len(validity) != 2:
        raise CertificateError("a certificate in it does not say how long it holds")
    return Certificate(_time(*validity[0]), _time(*validity[1]), names, subject, issuer)


def _alternative_names(extensions: bytes) -> Iterator[str]:
    for tag, extension in _children(_only(extensions, _SEQUENCE)):
        parts = _children(extension) if tag == _SEQUENCE else []
        if len(parts) < 2 or parts[0] != (_OBJECT_ID, _ALTERNATIVE_NAMES) or parts[-1][0] != _OCTETS:
            continue
        for kind, value in _children(_only(parts[-1][1], _SEQUENCE)):
            if kind in _TEXT_NAMES:
                yield value.decode("ascii", "backslashreplace")
            elif kind == _IP_ADDRESS and len(value) in (4, 16):
                yield str(ipaddress.ip_address(value))


def _time(tag: int, text: bytes) -> float:
    match = _TIME.fullmatch(text)
    if match is None or len(match[1]) != {_UTC_TIME: 2, _GENERALIZED_TIME: 4}.get(tag):
        raise CertificateError("a certificate in it has a time that is none")
    year, *rest = (int(part) for part in match.groups())
    if tag == _UTC_TIME:
        year += 2000 if year < 50 else 1900
    try:
        return float(calendar.timegm((year, *rest, 0, 0, 0)))
    except ValueError:
        raise CertificateError("a certificate in it has a time that is none") from None


def _only(data: bytes, tag: int) -> bytes:
    return _expect(_children(data), 0, tag)


def _expect(items: list[tuple[int, bytes]], number: int, tag: int) -> bytes:
    if number >= len(items) or items[number][0] != tag:
        raise CertificateError("a certificate in it is not built as one")
    return items[number][1]


def _children(data: bytes) -> list[tuple[int, bytes]]:
    """Split DER into its elements: tag and content of each."""
    found = []
    at = 0
    while at < len(data):
        head = data[at : at + 2]
        if len(head) < 2 or head[0] & 0x1F == 0x1F:
            raise CertificateError("a certificate in it is not built as one")
        at += 2
        length = head[1]
        if length & 0x80:
            count = length & 0x7F
            length = int.from_bytes(data[at : at + count], "big")
            at += count
            if not 1 <= count <= 4:
                raise CertificateError("a certificate in it is not built as one")
        if at + length > len(data):
            raise CertificateError("a certificate in it is cut off")
        found.append((head[0], data[at : at + length]))
        at += length
    return found
