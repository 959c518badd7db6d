"""How a snapshot is removed: proof that records can be kept, last look, removal.

Why this exists: purge and collection decide differently and remove alike. What the engine uses is asked again right
before; the store compares that exactly the snapshot decided about still stands under the name, and its removal is its
own durable record. So a ledger whose disk is full does not stand in the way of the removal that gives space back; any
other fault of the ledger does. Called under the core's lock.
"""

from collections.abc import Callable, Iterable, Sequence

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.errors import LedgerUnavailableError, SnapshotError, SnapshotInUseError, quoted
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.stores.contract import Removal, Store, StoredSnapshot

_DISK_FULL = "SQLITE_FULL"


async def require_ledger(core: CacheCore) -> None:
    """Write what waits to be written, and raise LedgerUnavailableError when the ledger forbids a removal."""
    if core.journal.fault is not None:
        await core.flush()
    fault = core.journal.fault
    if fault is not None and not _is_only_full(fault):
        raise fault


async def remove_snapshot(core: CacheCore, record: KnownSnapshot) -> Removal:
    """Remove exactly this snapshot.

    Raises SnapshotInUseError, SnapshotChangedError, SnapshotPendingError, StoreUnavailableError or
    LedgerUnavailableError; then the snapshot still stands.
    """
    core.crash_point("removal-before-commit")
    try:
        await core.commit(LedgerChange(), urgent=True)
    except LedgerUnavailableError as error:
        if not _is_only_full(error):
            raise
    _show_purging(core, [record], purging=True)
    core.crash_point("removal-before-store")
    try:
        removal = await core.in_store(_remove_unless_used, core.store, record.entry)
    except SnapshotError:
        _show_purging(core, [record], purging=False)
        raise
    core.crash_point("removal-after-store")
    core.forget(record)
    return removal


async def remove_as_known(
    core: CacheCore, names: Sequence[str], records: Sequence[KnownSnapshot]
) -> list[Removal | SnapshotError] | None:
    """Remove these snapshots in one turn of one thread, if the store shows all the names as they are known.

    Returns the outcome of each, or None when it shows them otherwise; then, and when StoreUnavailableError or
    LedgerUnavailableError is raised, nothing was removed.
    """
    known = core.known_entries(names)

    def work(commit: Callable[[], None]) -> list[Removal | SnapshotError] | None:
        if core.store.rescan(names) != known:
            return None
        core.crash_point("removal-before-commit")
        commit()
        core.crash_point("removal-before-store")
        return [_outcome(core.store, record.entry) for record in records]

    _show_purging(core, records, purging=True)
    try:
        outcomes = await core.commit_within(work, LedgerChange(), urgent=True)
    except SnapshotError:
        _show_purging(core, records, purging=False)
        raise
    if outcomes is None:
        _show_purging(core, records, purging=False)
        return None
    core.crash_point("removal-after-store")
    for record, outcome in zip(records, outcomes, strict=True):
        if isinstance(outcome, SnapshotError):
            _show_purging(core, [record], purging=False)
        else:
            core.forget(record)
    return outcomes


def _show_purging(core: CacheCore, records: Iterable[KnownSnapshot], *, purging: bool) -> None:
    for record in records:
        record.purging = purging
        core.show(record, record.facts)


def _outcome(store: Store, entry: StoredSnapshot) -> Removal | SnapshotError:
    try:
        return _remove_unless_used(store, entry)
    except SnapshotError as error:
        return error


def _is_only_full(fault: LedgerUnavailableError) -> bool:
    return fault.metadata.get("cause") == _DISK_FULL


def _remove_unless_used(store: Store, entry: StoredSnapshot) -> Removal:
    if entry.snapshot_id and entry.snapshot_id in store.in_use_ids():
        raise SnapshotInUseError(f"the engine says that a VM uses snapshot {quoted(entry.name)}")
    return store.remove(entry)
