"""What is read from certificates is what another reader finds; anything else is an error and nothing worse."""

from __future__ import annotations

import contextlib

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from common.certificates import CertificateError, read_certificates
from tests.support import pki

AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)
LEAF = pki.issue(AUTHORITY, "host-1", "10.0.0.1", "fd00::1", "somebody@mail.example")
DER = x509.load_pem_x509_certificate(LEAF.certificate).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    "pem",
    [
        LEAF.certificate,
        AUTHORITY.cert_pem.bytes(),
        trustme.CA(key_type=trustme.KeyType.RSA).cert_pem.bytes(),
        pki.issue(AUTHORITY, "host-1", ends_in_days=365 * 40).certificate,
        pki.issue_named_by_subject(AUTHORITY, "host-1").certificate,
    ],
)
def test_times_and_names_are_those_another_reader_finds(pem: bytes) -> None:
    (read,) = read_certificates(pem)
    other = x509.load_pem_x509_certificate(pem)
    assert read.begins_at == other.not_valid_before_utc.timestamp()
    assert read.ends_at == other.not_valid_after_utc.timestamp()
    names: set[str] = set()
    with contextlib.suppress(x509.ExtensionNotFound):
        found = other.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = {str(each.value) for each in found}
    assert read.names == names


def test_all_of_a_bundle_in_its_order() -> None:
    names = [each.names for each in read_certificates(b"a note\n" + LEAF.certificate + AUTHORITY.cert_pem.bytes())]
    assert [bool(each) for each in names] == [True, False]


def test_a_name_is_not_ended_by_nul() -> None:
    """The library's own list of names ends at the first NUL, which would make another name of it."""
    (read,) = read_certificates(pki.issue_as_written(AUTHORITY, "host-1\0.example").certificate)
    assert read.names == {"host-1\0.example"}


@pytest.mark.parametrize("kept", [0, 1, 40, 100, -30])
def test_a_bundle_that_is_cut_off_is_an_error(kept: int) -> None:
    """F22: also when what comes before the cut is whole."""
    # Counted from the end where it must be: a certificate's length differs from run to run.
    length = kept if kept >= 0 else len(LEAF.certificate) + kept
    with pytest.raises(CertificateError):
        read_certificates(LEAF.certificate[:length])
    if length > 1:
        with pytest.raises(CertificateError):
            read_certificates(LEAF.certificate + LEAF.certificate[:length])


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for pem in (data, pki.pem_of(data)):
        with contextlib.suppress(CertificateError):
            read_certificates(pem)


@given(st.integers(0, len(DER) - 1), st.integers(0, 255))
def test_a_certificate_with_one_byte_changed_is_read_or_refused(at: int, byte: int) -> None:
    with contextlib.suppress(CertificateError):
        read_certificates(pki.pem_of(DER[:at] + bytes([byte]) + DER[at + 1 :]))
