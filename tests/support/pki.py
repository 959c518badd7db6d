"""Certificates for tests: authorities, nodes, clients of every kind, and the odd ones that must be refused."""

from __future__ import annotations

import base64
import datetime
import os
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from common.tls_files import TlsFiles

CONTROLLER = "cocoon-node-controller"
VIEWER = "cocoon-node-viewer"

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain and its key, PEM."""

    certificate: bytes
    key: bytes


def issue(authority: trustme.CA, *names: str, begins_in_days: int = -1, ends_in_days: int = 30) -> Pair:
    """Return a certificate for these names, good for clients and servers, that holds between these days from now."""
    now = datetime.datetime.now(datetime.UTC)
    leaf = authority.issue_cert(
        *names,
        not_before=now + begins_in_days * _DAY,
        not_after=now + ends_in_days * _DAY,
        key_type=trustme.KeyType.ECDSA,
    )
    return Pair(b"".join(blob.bytes() for blob in leaf.cert_chain_pems), leaf.private_key_pem.bytes())


def authority(*, ends_in_days: int = 3650, name: str = "an authority") -> trustme.CA:
    """Return an authority of this name that runs out in so many days."""
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 400 * _DAY)
        .not_valid_after(now + ends_in_days * _DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return trustme.CA.from_pem(
        made.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        ),
    )


def issue_named_by_subject(authority: trustme.CA, common_name: str) -> Pair:
    """Return a client certificate with a common name and no alternative names."""
    return _signed(authority, common_name, [])


def issue_as_written(authority: trustme.CA, name: str) -> Pair:
    """Return a client certificate for this name, letter by letter."""
    return _signed(authority, "as written", [x509.SubjectAlternativeName([x509.DNSName(name)])])


def issue_for_servers(authority: trustme.CA, name: str) -> Pair:
    """Return a certificate that may only be used by a server."""
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    return _signed(authority, name, [usage, x509.SubjectAlternativeName([x509.DNSName(name)])])


def pem_of(der: bytes) -> bytes:
    """Return these bytes as a file of certificates would hold them."""
    text = base64.b64encode(der)
    return b"-----BEGIN CERTIFICATE-----\n" + text + b"\n-----END CERTIFICATE-----\n"


def _signed(authority: trustme.CA, common_name: str, extensions: list[x509.ExtensionType]) -> Pair:
    now = datetime.datetime.now(datetime.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(signer, hashes.SHA256())
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), encoded_key)


class TlsDirectory:
    """TLS files of one program, replaced as tools for rotation replace them: each by a rename."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authorities, self.certificate, self.key = (directory / name for name in ("ca.crt", "tls.crt", "tls.key"))

    @property
    def files(self) -> TlsFiles:
        """Return the paths as both programs take them."""
        return TlsFiles(str(self.authorities), str(self.certificate), str(self.key))

    def trust(self, *authorities: trustme.CA) -> None:
        """Replace the authorities."""
        _replace(self.authorities, b"".join(authority.cert_pem.bytes() for authority in authorities))

    def use(self, pair: Pair) -> None:
        """Replace key and certificate, one after the other: for a moment they do not fit."""
        _replace(self.key, pair.key)
        _replace(self.certificate, pair.certificate)

    def agent_settings(self) -> dict[str, str]:
        """Return the agent's variables for these files."""
        return {
            "COCOON_NODE_TLS_CLIENT_CA_FILE": str(self.authorities),
            "COCOON_NODE_TLS_CERT_FILE": str(self.certificate),
            "COCOON_NODE_TLS_KEY_FILE": str(self.key),
        }


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(0o600)
    os.replace(draft, path)
