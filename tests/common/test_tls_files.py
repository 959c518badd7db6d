"""TLS files that others write: what is taken, what is refused, and what stays in use meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from common.tls_files import TlsFilesError
from common.tls_following import FollowedTlsFiles
from tests.support import pki

AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def directory(tmp_path: Path) -> pki.TlsDirectory:
    made = pki.TlsDirectory(tmp_path / "tls")
    made.trust(AUTHORITY)
    made.use(pki.issue(AUTHORITY, "host-1", ends_in_days=10))
    return made


def test_a_change_is_taken_and_its_end_is_known(directory: pki.TlsDirectory) -> None:
    followed = FollowedTlsFiles(directory.files)
    before = followed.contents
    followed.look()
    assert (followed.generation, followed.contents) == (1, before)
    directory.use(pki.issue(AUTHORITY, "host-1", ends_in_days=20))
    followed.look()
    assert followed.generation == 2
    assert followed.contents.certificate_ends_at - before.certificate_ends_at == pytest.approx(10 * 86400, abs=60)
    assert followed.contents.chain[0].names == {"host-1"}


def test_a_file_rewritten_within_one_tick_of_the_clock_is_noticed(directory: pki.TlsDirectory) -> None:
    """F22: same inode, same length, same times; only its bytes tell."""
    followed = FollowedTlsFiles(directory.files)
    for _ in range(20):
        new = pki.issue(AUTHORITY, "host-1")
        directory.key.write_bytes(new.key)
        directory.certificate.write_bytes(new.certificate)
        followed.look()
        assert followed.contents.certificate == new.certificate


def test_an_old_time_put_back_on_a_new_file_hides_nothing(directory: pki.TlsDirectory) -> None:
    """Archives and copies keep times."""
    for path in (directory.authorities, directory.certificate, directory.key):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    followed = FollowedTlsFiles(directory.files)
    new = pki.issue(AUTHORITY, "host-1")
    directory.use(new)
    for path in (directory.certificate, directory.key):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    followed.look()
    assert followed.contents.certificate == new.certificate


def test_links_swapped_as_a_kubelet_swaps_them(tmp_path: Path) -> None:
    for number in (1, 2):
        version = pki.TlsDirectory(tmp_path / f"v{number}")
        version.trust(AUTHORITY)
        version.use(pki.issue(AUTHORITY, f"host-{number}"))
    (tmp_path / "data").symlink_to("v1")
    followed = FollowedTlsFiles(pki.TlsDirectory(tmp_path / "data").files)
    (tmp_path / "new").symlink_to("v2")
    os.replace(tmp_path / "new", tmp_path / "data")
    followed.look()
    assert followed.contents.chain[0].names == {"host-2"}


@pytest.mark.parametrize("which", ["authorities", "certificate", "key"])
@pytest.mark.parametrize("spoil", ["gone", "empty", "half", "another", "huge", "directory"])
def test_what_is_broken_keeps_the_last_good(directory: pki.TlsDirectory, which: str, spoil: str) -> None:
    """F22: whichever file, however broken: the last good contents stay, it is named, and it mends by itself."""
    path: Path = getattr(directory, which)
    followed = FollowedTlsFiles(directory.files)
    good, whole = followed.contents, path.read_bytes()
    path.unlink()
    if spoil == "directory":
        path.mkdir()
    elif spoil != "gone":
        other = pki.issue(trustme.CA(), "host-1")
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "another": other.key, "huge": b"x" * (1 << 21)}[spoil]
        )
    for _ in range(2):
        followed.look()
        assert (followed.contents, followed.generation) == (good, 1)
        assert str(path) in followed.problem
    assert followed.failed_reads == 2
    if spoil == "directory":
        path.rmdir()
    path.write_bytes(whole)
    followed.look()
    assert (followed.contents, followed.generation, followed.problem) == (good, 1, "")


def test_half_a_pair_keeps_the_last_good(directory: pki.TlsDirectory) -> None:
    """F22: a rotation replaces two files, and one of them is first."""
    followed = FollowedTlsFiles(directory.files)
    new = pki.issue(AUTHORITY, "host-1")
    directory.key.write_bytes(new.key)
    followed.look()
    assert followed.generation == 1
    assert followed.problem
    directory.certificate.write_bytes(new.certificate)
    followed.look()
    assert (followed.generation, followed.problem) == (2, "")


def test_an_encrypted_key_is_an_error_and_no_question(directory: pki.TlsDirectory) -> None:
    """A program that serves has nobody to ask for a password."""
    key = serialization.load_pem_private_key(directory.key.read_bytes(), None)
    directory.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsFilesError, match=str(directory.key)):
        directory.files.read()


def test_notes_in_any_language_may_stand_beside_authorities(directory: pki.TlsDirectory) -> None:
    directory.authorities.write_bytes("Zertifikate für Köln\n".encode() + directory.authorities.read_bytes())
    assert len(directory.files.read().trusted) == 1
