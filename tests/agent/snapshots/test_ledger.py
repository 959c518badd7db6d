"""The ledger: durable, whole or not at all, bounded, refused or set aside when it is not what it should be."""

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from agent.snapshots.authority import Authority
from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.ledger import BALLAST_FILE, LEDGER_FILE, Ledger
from agent.snapshots.ledger_rows import (
    MAX_GONE_PROMISES,
    MAX_GONE_ROWS,
    MAX_SUPERSEDED,
    LedgerChange,
    LedgerState,
    prune_gone,
)
from agent.snapshots.ledger_schema import MIGRATIONS
from agent.snapshots.model import Retention, SnapshotFacts, SyncPoint
from common.snapshot_words import RetainReason
from tests.agent.snapshots.caching import START, pod
from tests.support.machine import can_mount, small_file_system

WEB = pod("ns", "web")
KEY = (WEB.vm_name, "id-1")
FACTS = SnapshotFacts(
    owner=WEB,
    retentions=(Retention(WEB, RetainReason.DISRUPTION, START, START + 60, backup_verified=True),),
    unclaimed_at=START,
    last_used_at=START - 1,
    stamped_in_doubt=True,
)
STATE = LedgerState("node-1", "store-1", Authority("cluster-1", 3, SyncPoint(3, 9)), START, START, clock_in_doubt=True)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "state"))
    ledger.open()
    yield ledger
    ledger.close()


def reopened(ledger: Ledger) -> Ledger:
    ledger.close()
    return Ledger(os.path.dirname(ledger.path))


def test_what_was_committed_is_there_after_opening_again(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE, facts={KEY: FACTS}, owners=(WEB,), superseded_uids=("uid-0",)))
    contents = reopened(ledger).open()
    assert contents.state == STATE
    assert contents.owners == (WEB,)
    assert [(row.name, row.snapshot_id, row.facts, row.gone) for row in contents.rows] == [(*KEY, FACTS, None)]
    assert contents.superseded_uids == ("uid-0",)
    assert contents.rows[0].facts.owner is contents.owners[0]


def test_the_file_is_durable_by_its_settings_and_nobody_elses(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE))
    connection = ledger._connected()
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    for urgent, mode in ((True, 1), (True, 1), (False, 2), (False, 2), (True, 1), (False, 2)):
        ledger.commit(LedgerChange(state=STATE), urgent=urgent)
        assert connection.execute("PRAGMA synchronous").fetchone() == (mode,)
    assert stat.S_IMODE(os.stat(os.path.dirname(ledger.path)).st_mode) == 0o700


def test_a_commit_survives_without_closing(ledger: Ledger, tmp_path: Path) -> None:
    """The files as a power loss leaves them: copied while the ledger is open."""
    ledger.commit(LedgerChange(state=STATE, facts={KEY: FACTS}))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in os.listdir(os.path.dirname(ledger.path)):
        (copy / name).write_bytes(Path(os.path.dirname(ledger.path), name).read_bytes())
    with closing(Ledger(str(copy))) as other:
        assert other.open().rows[0].facts == FACTS


def test_owners_are_replaced_as_a_set_and_facts_are_forgotten(ledger: Ledger) -> None:
    other = pod("ns", "other")
    ledger.commit(LedgerChange(owners=(WEB,), facts={KEY: FACTS}))
    ledger.commit(LedgerChange(owners=(other,), facts={KEY: None}))
    contents = reopened(ledger).open()
    assert (contents.owners, contents.rows) == ((other,), ())


def test_what_is_gone_is_kept_within_bounds(ledger: Ledger) -> None:
    """Rule 10; what somebody was promised to keep goes last, and is not pushed out by what nobody was."""
    plain = [(f"vk-ns-{number}", "id") for number in range(MAX_GONE_ROWS + 50)]
    promised = [(f"vk-kept-{number}", "id") for number in range(MAX_GONE_PROMISES + 50)]
    for keys, facts in ((promised, FACTS), (plain, SnapshotFacts(owner=WEB))):
        ledger.commit(LedgerChange(facts=dict.fromkeys(keys, facts)))
        ledger.commit(LedgerChange(gone=keys))
    ledger.maintain()
    assert ledger.size_bytes() <= 8 << 20
    rows = reopened(ledger).open().rows
    left = sorted((row.gone or 0, row.name) for row in rows)
    assert [name for _, name in left] == [name for name, _ in (*promised[50:], *plain[50:])]
    gone = dict.fromkeys(promised, FACTS) | dict.fromkeys(plain, SnapshotFacts(owner=WEB))
    prune_gone(gone)
    assert list(gone) == [*promised[50:], *plain[50:]]


def test_pods_that_were_replaced_are_remembered_within_bounds(ledger: Ledger) -> None:
    """Rule 10."""
    uids = [f"uid-{number}" for number in range(MAX_SUPERSEDED + 10)]
    ledger.commit(LedgerChange(superseded_uids=uids))
    assert reopened(ledger).open().superseded_uids == tuple(uids[10:])


def test_a_pod_that_is_an_owner_again_was_not_replaced(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(superseded_uids=("uid-0", WEB.pod_uid)))
    ledger.commit(LedgerChange(owners=(WEB,), superseded_uids=(WEB.pod_uid,)))
    assert reopened(ledger).open().superseded_uids == ("uid-0",)


def test_a_snapshot_that_comes_back_is_gone_no_more(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(facts={KEY: FACTS}))
    ledger.commit(LedgerChange(gone=[KEY]))
    ledger.commit(LedgerChange(facts={KEY: FACTS}))
    assert [row.gone for row in reopened(ledger).open().rows] == [None]


def test_a_second_program_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerUnavailableError, match="Another program has it open"):
        Ledger(os.path.dirname(ledger.path)).open()


def overwrite(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)


def break_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))


def break_a_row(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE snapshots SET document = ?", (b'{"owner": 3}',))


def drop_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE owners")


@pytest.mark.parametrize("damage", [overwrite, break_a_page, break_a_row, drop_a_table])
def test_a_damaged_ledger_is_set_aside(ledger: Ledger, damage: Callable[[Path], None]) -> None:
    ledger.commit(LedgerChange(state=STATE, facts={KEY: FACTS}, owners=(WEB,)))
    ledger.close()
    damage(Path(ledger.path))
    again = Ledger(os.path.dirname(ledger.path))
    contents = again.open()
    assert contents.rows == ()
    assert contents.state == LedgerState(everything_in_use=True)
    assert again.set_aside_as == ledger.path + ".damaged"
    assert os.path.exists(again.set_aside_as)
    assert reopened(again).open().state.everything_in_use


def delete(path: Path) -> None:
    path.unlink()


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)


def delete_the_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("loss", [delete, replace_by_a_copy, delete_the_log])
def test_nothing_is_promised_in_a_file_that_the_next_start_will_not_find(
    ledger: Ledger, loss: Callable[[Path], None], urgent: bool
) -> None:
    """Rule 6: the open file of a deleted ledger takes every commit, and all of them are gone with the process."""
    ledger.commit(LedgerChange(state=STATE))
    loss(Path(ledger.path))
    for _ in range(2):
        with pytest.raises(LedgerUnavailableError, match="moved, deleted or replaced") as refused:
            ledger.commit(LedgerChange(facts={KEY: FACTS}), urgent=urgent)
        assert refused.value.metadata == {"cause": "REPLACED"}
        if loss is delete_the_log:
            break
    assert os.path.exists(ledger.path) is (loss is not delete)


def test_a_ledger_that_was_put_back_is_used_again(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE))
    away = Path(ledger.path).with_name("away")
    os.rename(ledger.path, away)
    with pytest.raises(LedgerUnavailableError):
        ledger.commit(LedgerChange(facts={KEY: FACTS}))
    away.rename(ledger.path)
    ledger.commit(LedgerChange(facts={KEY: FACTS}))
    assert [row.facts for row in reopened(ledger).open().rows] == [FACTS]


def test_a_newer_ledger_is_refused_with_advice_and_left_alone(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE))
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = Path(ledger.path).read_bytes()
    with pytest.raises(LedgerUnavailableError, match="newer release"):
        Ledger(os.path.dirname(ledger.path)).open()
    assert Path(ledger.path).read_bytes() == before


def test_an_older_ledger_is_migrated_and_keeps_everything(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE, facts={KEY: FACTS}))
    ledger.close()
    newer = (*MIGRATIONS, ("CREATE TABLE addition (number INTEGER) STRICT",))
    with closing(Ledger(os.path.dirname(ledger.path), newer)) as migrated:
        assert migrated.open().rows[0].facts == FACTS
        assert migrated._connected().execute("PRAGMA user_version").fetchone() == (len(newer),)


def test_a_migration_that_fails_leaves_the_old_version(ledger: Ledger) -> None:
    ledger.commit(LedgerChange(state=STATE, facts={KEY: FACTS}))
    ledger.close()
    broken = (*MIGRATIONS, ("CREATE TABLE half (number INTEGER) STRICT", "SELECT no_such_function()"))
    with pytest.raises(LedgerUnavailableError, match="could not be brought from schema version"):
        Ledger(os.path.dirname(ledger.path), broken).open()
    with closing(Ledger(os.path.dirname(ledger.path))) as again:
        assert again.open().rows[0].facts == FACTS


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(LedgerUnavailableError, match="file/state"):
        Ledger(str(blocked / "state")).open()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount file systems")
    place = tmp_path / "small"
    place.mkdir()
    with ExitStack() as stack:
        yield stack.enter_context(small_file_system(place, size_bytes=2 << 20, kind="tmpfs"))


def fill(directory: Path) -> None:
    with (directory / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def commit_until_full(ledger: Ledger) -> LedgerUnavailableError:
    for number in range(1000):
        try:
            ledger.commit(LedgerChange(facts={(f"vk-ns-{number}", "id"): FACTS}))
        except LedgerUnavailableError as error:
            return error
    raise AssertionError("the disk did not fill up")


def test_a_full_disk_loses_and_halves_nothing(small: Path) -> None:
    """F24: a commit that does not fit has not happened, what was committed stays, an urgent one has the ballast."""
    with closing(Ledger(str(small / "state"))) as ledger:
        ledger.open()
        ledger.commit(LedgerChange(facts={KEY: FACTS}))
        fill(small)
        refused = commit_until_full(ledger)
        assert refused.metadata["cause"] == "SQLITE_FULL"
        assert "is full" in str(refused)
        ledger.commit(LedgerChange(facts={("vk-ns-urgent", "id"): FACTS}), urgent=True)
        assert not (small / "state" / BALLAST_FILE).exists()
    (small / "filler").unlink()
    with closing(Ledger(str(small / "state"))) as ledger:
        names = {row.name for row in ledger.open().rows}
        assert {KEY[0], "vk-ns-urgent"} <= names
        assert (small / "state" / BALLAST_FILE).exists()
        assert (small / "state" / LEDGER_FILE).exists()
