"""A small authority with certificates for a trial, made by the `openssl` command.

Why this exists: mutual TLS must not be the reason that somebody tries the system without it. A fleet in earnest has an
authority of its own; this one is a key in a directory. `openssl` is on nearly every host, and a library for it in the
agent would be larger than the agent.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

AUTHORITY = "ca"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_AUTHORITY_DAYS = 3650
_SECONDS = 60
# The host's own configuration of openssl would add to what is asked for here.
_CONFIGURATION = """\
[req]
distinguished_name = name
x509_extensions = authority
[name]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[agent]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:{name}
[client]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = DNS:{name}
"""


class CertificatesError(Exception):
    """Nothing was made; `str()` says why and what to do."""


@dataclass(frozen=True, slots=True)
class Made:
    """One directory with `tls.crt`, `tls.key` and `ca.crt`: whom it is for, and whether it answers or calls."""

    path: str
    name: str
    is_agent: bool


def make_certificates(directory: str, nodes: Sequence[str], clients: Sequence[str], days: int) -> list[Made]:
    """Make what is missing of the authority, and a certificate for each name; return what was made.

    Client certificates come with a new authority only. Nothing that exists is overwritten: then, and when anything
    fails, nothing is made at all. Raises `CertificatesError`.
    """
    if shutil.which("openssl") is None:
        raise CertificatesError("the openssl command is not on PATH; install it (package openssl), or use another host")
    has_authority = os.path.exists(os.path.join(directory, AUTHORITY))
    wanted = [Made(os.path.join(directory, "agents", name), name, is_agent=True) for name in nodes]
    if not has_authority:
        wanted += [Made(os.path.join(directory, "clients", name), name, is_agent=False) for name in clients]
    for each in wanted:
        if os.path.lexists(each.path):
            raise CertificatesError(f"{each.path} exists; nothing is overwritten, so move it away first")
    try:
        with _private_files(), _draft(directory) as draft:
            authority = os.path.join(directory if has_authority else draft, AUTHORITY)
            if not has_authority:
                _make_authority(authority)
            for each in wanted:
                _issue(authority, os.path.join(draft, os.path.relpath(each.path, directory)), each, days)
            _move_in(draft, directory, [] if has_authority else [AUTHORITY], wanted)
    except OSError as error:
        raise CertificatesError(f"{error.filename or directory}: {error.strerror}") from None
    return wanted


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Let nobody else read what is made, from its first byte on."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def _draft(directory: str) -> Iterator[str]:
    """Give a directory beside the final ones, so that they come into being by a rename, and whole."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".draft-", dir=directory) as draft:
        yield draft


def _move_in(draft: str, directory: str, names: Sequence[str], made: Sequence[Made]) -> None:
    for name in (*names, *(os.path.relpath(each.path, directory) for each in made)):
        target = os.path.join(directory, name)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.rename(os.path.join(draft, name), target)


def _make_authority(path: str) -> None:
    os.mkdir(path, 0o700)
    key, certificate = os.path.join(path, "ca.key"), os.path.join(path, "ca.crt")
    with _configuration(path, "unused") as configuration:
        _openssl(
            *("req", "-x509", "-config", configuration, *_KEY, "-sha256", "-days", str(_AUTHORITY_DAYS)),
            *("-subj", "/CN=cocoon-node trial authority", "-keyout", key, "-out", certificate),
        )


def _issue(authority: str, path: str, made: Made, days: int) -> None:
    os.makedirs(path, 0o700)
    key, certificate, request = (os.path.join(path, name) for name in ("tls.key", "tls.crt", "request"))
    with _configuration(path, made.name) as configuration:
        # The subject is for people; the alternative name is the one that counts.
        subject = f"/CN={made.name}"
        _openssl("req", "-new", "-config", configuration, *_KEY, "-subj", subject, "-keyout", key, "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-out", certificate, "-sha256", "-days", str(days)),
            *("-CA", os.path.join(authority, "ca.crt"), "-CAkey", os.path.join(authority, "ca.key")),
            *("-set_serial", f"0x{os.urandom(15).hex()}"),
            *("-extfile", configuration, "-extensions", "agent" if made.is_agent else "client"),
        )
    os.unlink(request)
    shutil.copyfile(os.path.join(authority, "ca.crt"), os.path.join(path, "ca.crt"))


@contextlib.contextmanager
def _configuration(directory: str, name: str) -> Iterator[str]:
    path = os.path.join(directory, "openssl.cnf")
    with open(path, "w", encoding="ascii") as file:
        file.write(_CONFIGURATION.format(name=name))
    yield path
    os.unlink(path)


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CertificatesError(f"openssl {arguments[0]} did not end within {_SECONDS} s") from None
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise CertificatesError(f"openssl {arguments[0]} ended with status {done.returncode}: {words[-1]}")
