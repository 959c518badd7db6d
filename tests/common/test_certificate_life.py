"""Weeks before a certificate runs out people are told, by one rule, once."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.certificate_life import has_run_out, life_problem, utc
from common.tls_following import FollowedTlsFiles
from tests.support import pki

SOON = 13
LATER = 15
OURS_RUNS_OUT = "the certificate, or an authority it hangs on, runs out at"
OURS_RAN_OUT = "the certificate, or an authority it hangs on, ran out at"


@pytest.fixture
def directory(tmp_path: Path) -> pki.TlsDirectory:
    return pki.TlsDirectory(tmp_path / "tls")


@pytest.mark.parametrize(
    ("certificate_days", "issuer_days", "other_days", "said", "run_out"),
    [
        ((-400, LATER), 900, (), "", False),
        ((-400, SOON), 900, (), OURS_RUNS_OUT, False),
        ((-400, -1), 900, (), OURS_RAN_OUT, True),
        # Short ones are renewed in their last third: their last fifth is what is late.
        ((-3, 2), 900, (), "", False),
        ((-7, 1), 900, (), OURS_RUNS_OUT, False),
        # A certificate holds no longer than the authority that signed it.
        ((-400, LATER), SOON, (900,), OURS_RUNS_OUT, False),
        ((-400, LATER), -1, (900,), OURS_RAN_OUT, True),
        # An authority that is being replaced may run out beside its successor.
        ((-400, LATER), 900, (SOON,), "", False),
        ((-400, LATER), 900, (-1,), "", False),
    ],
)
def test_what_runs_out_and_when_it_is_told(
    directory: pki.TlsDirectory,
    certificate_days: tuple[int, int],
    issuer_days: int,
    other_days: Sequence[int],
    said: str,
    run_out: bool,
) -> None:
    issuer = pki.authority(ends_in_days=issuer_days)
    others = [pki.authority(ends_in_days=days, name=f"another authority {days}") for days in other_days]
    directory.trust(issuer, *others)
    begins, ends = certificate_days
    directory.use(pki.issue(issuer, "host-1", begins_in_days=begins, ends_in_days=ends))
    contents, now = directory.files.read(), time.time()
    told = life_problem(contents, now)
    assert told.startswith(said)
    assert bool(told) is bool(said)
    assert has_run_out(contents, now) is run_out


def test_all_authorities_of_the_other_side(directory: pki.TlsDirectory) -> None:
    """Both sides may have authorities of their own; then ours says nothing about how long theirs hold."""
    directory.trust(pki.authority(ends_in_days=SOON, name="one"), pki.authority(ends_in_days=SOON - 5, name="two"))
    directory.use(pki.issue(pki.authority(), "host-1", ends_in_days=LATER))
    contents = directory.files.read()
    assert life_problem(contents, time.time()) == (
        f"the last authority of the other side runs out at {utc(contents.authorities_end_at)}"
    )


def test_a_renewed_authority_of_the_same_name_counts(directory: pki.TlsDirectory) -> None:
    directory.trust(pki.authority(ends_in_days=SOON), pki.authority(ends_in_days=900))
    directory.use(pki.issue(pki.authority(), "host-1", ends_in_days=LATER))
    assert life_problem(directory.files.read(), time.time()) == ""


def test_it_is_logged_once_and_ends_with_new_files(
    directory: pki.TlsDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = pki.authority()
    directory.trust(issuer)
    directory.use(pki.issue(issuer, "host-1", begins_in_days=-400, ends_in_days=SOON))
    with caplog.at_level(logging.INFO):
        followed = FollowedTlsFiles(directory.files)
        for _ in range(3):
            followed.look()
        assert "runs out at" in followed.life_problem
        assert [record.message for record in caplog.records] == ["TLS files have to be replaced"]
        directory.use(pki.issue(issuer, "host-1", ends_in_days=LATER))
        followed.look()
    assert followed.life_problem == ""
    assert [record.message for record in caplog.records][1:] == ["TLS files reloaded"]
