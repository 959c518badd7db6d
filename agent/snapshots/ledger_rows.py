"""Rows and transactions of the ledger: what the tables hold, and what an SQLite error means.

Why this exists: the ledger's life (open, check, set aside, ballast) and the shape of its rows change for different
reasons. Nothing but the ledger uses this.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from agent.snapshots.authority import Authority
from agent.snapshots.model import SnapshotFacts
from common.snapshot_words import Owner

MAX_GONE_ROWS = 1000
# What somebody was promised to keep is remembered longer, should a whole disk of it be away for a while.
MAX_GONE_PROMISES = 4096
MAX_SUPERSEDED = 4096
# SQLITE_ERROR while opening: tables that are not there, or not ours.
_DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")

SnapshotKey = tuple[str, str]
"""Name and id of a snapshot; the id is empty for one whose metadata never could be read."""


@dataclass(frozen=True, slots=True)
class LedgerState:
    """What the ledger knows besides snapshots. Times are Unix seconds, None before the first.

    `last_write_at` is the last write at a time that was not in doubt, and `booted_at` when the boot of `boot_id` began
    by that time. `everything_in_use`: the ledger was rebuilt, and nothing may be removed before owners are synced.
    """

    node_name: str = ""
    store_id: str | None = None
    authority: Authority = field(default_factory=Authority)
    synced_at: float | None = None
    last_write_at: float | None = None
    clock_in_doubt: bool = False
    everything_in_use: bool = False
    boot_id: str = ""
    booted_at: float | None = None


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What is recorded of one snapshot; `gone` is None while it is in the store, else the order in which it went."""

    name: str
    snapshot_id: str
    facts: SnapshotFacts
    gone: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """Everything in the ledger."""

    state: LedgerState
    owners: tuple[Owner, ...] = ()
    rows: tuple[LedgerRow, ...] = ()
    superseded_uids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """One transaction. Fields left out stay as they are.

    `facts` replaces what is recorded of a snapshot that is in the store, None forgets it. `gone` are snapshots that
    left the store without our doing. `owners` replaces the whole set; none of them counts as superseded any more.
    """

    state: LedgerState | None = None
    facts: Mapping[SnapshotKey, SnapshotFacts | None] = field(default_factory=dict)
    gone: Iterable[SnapshotKey] = ()
    owners: Sequence[Owner] | None = None
    superseded_uids: Iterable[str] = ()


_STATE = msgspec.json.Decoder(LedgerState)
_OWNER = msgspec.json.Decoder(Owner)
_FACTS = msgspec.json.Decoder(SnapshotFacts)
_ENCODER = msgspec.json.Encoder()


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the body whole or not at all."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def read_contents(connection: sqlite3.Connection) -> LedgerContents:
    """Return everything in the ledger. Raises ValueError when a row is not what was written.

    Equal owners are one object, because a VM's two snapshots and their promises name the same pod.
    """
    try:
        return _decode_contents(connection)
    except msgspec.DecodeError as error:
        raise ValueError(f"a row is not what was written: {error}") from error


def _decode_contents(connection: sqlite3.Connection) -> LedgerContents:
    shared: dict[Owner, Owner] = {}
    document = connection.execute("SELECT document FROM state WHERE id = 1").fetchone()
    documents = connection.execute("SELECT document FROM owners")
    owners = tuple(_OWNER.decode(row[0]).with_shared_texts() for row in documents)
    shared.update(zip(owners, owners, strict=True))
    rows = connection.execute("SELECT name, snapshot_id, document, gone FROM snapshots ORDER BY name, gone")
    superseded = connection.execute("SELECT pod_uid FROM superseded ORDER BY position")
    return LedgerContents(
        state=_STATE.decode(document[0]) if document else LedgerState(),
        owners=owners,
        rows=tuple(
            LedgerRow(name, snapshot_id, _with_shared_owners(_FACTS.decode(encoded), shared), gone)
            for name, snapshot_id, encoded, gone in rows
        ),
        superseded_uids=tuple(row[0] for row in superseded),
    )


def write_change(connection: sqlite3.Connection, change: LedgerChange) -> None:
    """Write one change; to be called in a transaction."""
    if change.state is not None:
        connection.execute("INSERT OR REPLACE INTO state VALUES (1, ?)", (_ENCODER.encode(change.state),))
    _write_snapshots(connection, change)
    _write_superseded(connection, tuple(change.superseded_uids))
    if change.owners is not None:
        _write_owners(connection, change.owners)
        connection.execute("DELETE FROM superseded WHERE pod_uid IN (SELECT pod_uid FROM owners)")


def prune_gone(gone: dict[SnapshotKey, SnapshotFacts]) -> None:
    """Forget, oldest first, as many of the snapshots that have left the store as the ledger forgets."""
    if len(gone) <= MAX_GONE_ROWS:
        return
    for is_promised, limit in ((False, MAX_GONE_ROWS), (True, MAX_GONE_PROMISES)):
        keys = [key for key, facts in gone.items() if bool(facts.retentions) is is_promised]
        for key in keys[: max(0, len(keys) - limit)]:
            del gone[key]


def is_damage(error: BaseException) -> bool:
    """Whether an error means that the file is no ledger any more, not that it cannot be used now."""
    return isinstance(error, sqlite3.Error) and error_name(error).startswith(_DAMAGE)


def error_name(error: BaseException) -> str:
    """Return the stable name of an SQLite or operating system error."""
    if isinstance(error, sqlite3.Error):
        return str(getattr(error, "sqlite_errorname", None) or "SQLITE_ERROR")
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__


def advice(error: BaseException) -> str:
    """Return what a person should do about an error."""
    name = error_name(error)
    if name.startswith("SQLITE_FULL"):
        return "Its file system is full: free some space there."
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "Another program has it open: stop that first."
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return "Its directory must exist and be writable for the agent."
    return "Check the disk it lies on; snapshots can still be read meanwhile."


def _write_snapshots(connection: sqlite3.Connection, change: LedgerChange) -> None:
    for key, facts in change.facts.items():
        if facts is None:
            connection.execute("DELETE FROM snapshots WHERE name = ? AND snapshot_id = ?", key)
        else:
            connection.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, NULL)", (*key, _ENCODER.encode(facts))
            )
    gone = list(change.gone)
    if not gone:
        return
    newest = connection.execute("SELECT coalesce(max(gone), 0) FROM snapshots WHERE gone IS NOT NULL").fetchone()[0]
    connection.executemany(
        "UPDATE snapshots SET gone = ? WHERE name = ? AND snapshot_id = ?",
        [(newest + number, *key) for number, key in enumerate(gone, start=1)],
    )
    if connection.execute("SELECT count(*) FROM snapshots WHERE gone IS NOT NULL").fetchone()[0] > MAX_GONE_ROWS:
        for is_promised, limit in ((False, MAX_GONE_ROWS), (True, MAX_GONE_PROMISES)):
            connection.execute(
                "DELETE FROM snapshots WHERE gone IN (SELECT gone FROM snapshots WHERE gone IS NOT NULL"
                " AND (json_array_length(CAST(document AS TEXT), '$.retentions') > 0) = ?"
                " ORDER BY gone DESC LIMIT -1 OFFSET ?)",
                (is_promised, limit),
            )


def _write_owners(connection: sqlite3.Connection, owners: Sequence[Owner]) -> None:
    wanted = {owner.pod_uid: _ENCODER.encode(owner) for owner in owners}
    present = dict(connection.execute("SELECT pod_uid, document FROM owners"))
    connection.executemany("DELETE FROM owners WHERE pod_uid = ?", [(uid,) for uid in present.keys() - wanted.keys()])
    connection.executemany(
        "INSERT OR REPLACE INTO owners VALUES (?, ?)",
        [(uid, document) for uid, document in wanted.items() if present.get(uid) != document],
    )


def _write_superseded(connection: sqlite3.Connection, uids: Sequence[str]) -> None:
    if not uids:
        return
    connection.executemany("INSERT OR IGNORE INTO superseded (pod_uid) VALUES (?)", [(uid,) for uid in uids])
    connection.execute(
        "DELETE FROM superseded WHERE position <= (SELECT max(position) FROM superseded) - ?", (MAX_SUPERSEDED,)
    )


def _with_shared_owners(facts: SnapshotFacts, shared: dict[Owner, Owner]) -> SnapshotFacts:
    if facts.owner is None and not facts.retentions:
        return facts
    return replace(
        facts,
        owner=None if facts.owner is None else _shared(facts.owner, shared),
        retentions=tuple(replace(kept, owner=_shared(kept.owner, shared)) for kept in facts.retentions),
    )


def _shared(owner: Owner, shared: dict[Owner, Owner]) -> Owner:
    known = shared.get(owner)
    if known is None:
        known = owner.with_shared_texts()
        shared[known] = known
    return known
