"""Certificates for what is measured over mutual TLS: an authority, and pairs of P-256 as `certs` makes them.

Made in this process, because a command for each of a thousand hosts would take longer than what is measured.
"""

from pathlib import Path

import trustme

CONTROLLER = "cocoon-node-controller"


class Authority:
    """One authority and what it has issued, each in a directory as both programs take it."""

    def __init__(self) -> None:
        self._made = trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.certificate = self._made.cert_pem.bytes()

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """Return key and certificate for this name, PEM, for callers and servers."""
        leaf = self._made.issue_cert(name, key_type=trustme.KeyType.ECDSA)
        return leaf.private_key_pem.bytes(), b"".join(each.bytes() for each in leaf.cert_chain_pems)

    def issue_into(self, directory: Path, name: str) -> Path:
        """Write `ca.crt`, `tls.crt` and `tls.key` for this name into a new directory and return it."""
        directory.mkdir(parents=True)
        key, certificate = self.issue(name)
        for file, content in (("ca.crt", self.certificate), ("tls.key", key), ("tls.crt", certificate)):
            (directory / file).write_bytes(content)
        (directory / "tls.key").chmod(0o600)
        return directory
