"""Ledgers of every schema version there ever was: brought forward with everything in them, never lost, never guessed.

`ledgers/version-N.sql` is a ledger as the first release with schema version N wrote it. Whoever adds a version adds the
file of it here, with the same pods in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent.snapshots.authority import Authority
from agent.snapshots.ledger import LEDGER_FILE, Ledger
from agent.snapshots.ledger_rows import LedgerContents
from agent.snapshots.ledger_schema import MIGRATIONS, SCHEMA_VERSION
from agent.snapshots.model import SnapshotFacts, SyncPoint
from agent.snapshots.stores.identity import MARKER_FILE
from common.snapshot_words import RetainReason
from devenv.cocoon_programs import AgentProcess
from devenv.errors import DevenvError
from devenv.vm_snapshots import write_snapshot
from tests.support.snapshot_calls import retention, state, usage
from tests.support.waiting import wait_for

FILES = Path(__file__).parent / "ledgers"
VERSIONS = range(1, SCHEMA_VERSION + 1)
NODE, STORE = "host-1", "5f0d3c1ab4e94f7c8a6b2d1e9c7f5a30"
KEPT, KEPT_ID = "vk-shop-web-0", "id-web"
WRITTEN_AT = 1_750_000_000.0


def ledger_of(version: int, directory: Path) -> Path:
    """Make the ledger of this version in a state directory; return its file."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / LEDGER_FILE
    with closing(sqlite3.connect(path)) as connection:
        # As agents do; it is written in the file.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript((FILES / f"version-{version}.sql").read_text())
    return path


def contents_of(directory: Path) -> LedgerContents:
    with closing(Ledger(str(directory))) as ledger:
        return ledger.open()


def schema_of(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {" ".join(row[0].split()) for row in rows}


def test_every_version_has_its_file() -> None:
    assert {path.name for path in FILES.iterdir()} == {f"version-{version}.sql" for version in VERSIONS}


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_released_is_not_edited(version: int, tmp_path: Path) -> None:
    """Hosts have been brought to these versions by these very statements; others would leave theirs behind."""
    ledger_of(version, tmp_path)
    with closing(sqlite3.connect(tmp_path / LEDGER_FILE)) as old, closing(sqlite3.connect(":memory:")) as new:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                new.execute(statement)
        assert schema_of(old) == schema_of(new)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_in_it_is_there_under_the_present_schema(version: int, tmp_path: Path) -> None:
    ledger_of(version, tmp_path)
    for _ in range(2):
        contents = contents_of(tmp_path)
        facts: dict[str, SnapshotFacts] = {row.name: row.facts for row in contents.rows}
        assert contents.state.authority == Authority("cluster-1", 7, SyncPoint(7, 42))
        assert (contents.state.node_name, contents.state.store_id) == (NODE, STORE)
        assert [owner.pod_uid for owner in contents.owners] == ["uid-db"]
        assert contents.superseded_uids == ("uid-before",)
        (kept,) = facts[KEPT].retentions
        assert (kept.owner.pod_uid, kept.reason, kept.expires_at) == ("uid-web", RetainReason.SEAT_RELEASE, None)
        assert kept.backup_verified
        assert (facts[KEPT].unclaimed_at, facts[KEPT].last_used_at) == (WRITTEN_AT, WRITTEN_AT - 5)
        assert facts["vk-shop-db-0"].owner == contents.owners[0]
        (gone,) = facts["fork-vk-shop-old-0"].retentions
        assert (gone.reason, gone.expires_at) == (RetainReason.DISRUPTION, WRITTEN_AT + 86400)
        assert not contents.state.everything_in_use, "it was taken for a damaged one"
        assert not (tmp_path / f"{LEDGER_FILE}.damaged").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_agent_goes_on_with_it(version: int, agent_process: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """The agent's own program: who was promised what, and which controller was the last, are known from the start."""
    store, records = tmp_path / "store", tmp_path / "records"
    write_snapshot(store, KEPT, snapshot_id=KEPT_ID)
    (store / MARKER_FILE).write_text(f"{STORE}\n")
    ledger_of(version, records)
    settings = {"COCOON_NODE_SNAPSHOT_DIR": str(store), "COCOON_NODE_STATE_DIR": str(records)}
    agent = agent_process(settings, NODE)
    wait_for(lambda: state(agent.address, KEPT) == "RETAINED", what="the snapshot being kept as promised")
    assert retention(agent.address, KEPT) == ("SEAT_RELEASE", None)
    known = usage(agent.address)
    assert known.controller_epoch == 7
    agent.stop()
    assert contents_of(records).state.authority.cluster_id == "cluster-1"


def test_a_promise_for_a_reason_of_a_newer_release_is_a_promise(tmp_path: Path) -> None:
    """Back from a release that has one more reason and the same schema: neither lost, nor taken for damage."""
    path = ledger_of(SCHEMA_VERSION, tmp_path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE snapshots SET document = CAST(replace(CAST(document AS TEXT), ?, ?) AS BLOB)",
            ('"reason":1', '"reason":99,"a_field_of_a_newer_release":[1]'),
        )
    facts = {row.name: row.facts for row in contents_of(tmp_path).rows}
    assert [kept.reason for kept in facts[KEPT].retentions] == [RetainReason.REQUESTED]
    assert not (tmp_path / f"{LEDGER_FILE}.damaged").exists()


def test_the_agent_refuses_a_newer_ledger_and_leaves_it_alone(
    agent_process: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """The newer release finds every byte again: nothing of the start that failed is written over it."""
    path = ledger_of(SCHEMA_VERSION, tmp_path / "records")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(DevenvError, match="written by a newer release; start that one, or move the file away"):
        agent_process({"COCOON_NODE_STATE_DIR": str(path.parent)}, NODE)
    assert path.read_bytes() == before
