"""The one way a snapshot is removed: intent, last look, removal, record.

Why this exists: purge and collection decide differently and remove alike. The intent is durable before the first byte
goes; what the engine uses is asked again right before; the store compares that exactly the snapshot decided about
still stands under the name. Called under the core's lock.
"""

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.errors import LedgerUnavailableError, SnapshotError, SnapshotInUseError, quoted
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.stores.contract import Removal, Store, StoredSnapshot

_DISK_FULL = "SQLITE_FULL"


def blocking_fault(core: CacheCore) -> LedgerUnavailableError | None:
    """Return the ledger's fault, unless it is only that its disk is full, which a removal may cure."""
    fault = core.journal.fault
    if fault is not None and fault.metadata.get("cause") == _DISK_FULL and core.removal_is_its_own_record:
        return None
    return fault


async def require_ledger(core: CacheCore) -> None:
    """Write what waits to be written, and raise LedgerUnavailableError when the ledger forbids a removal."""
    if core.journal.fault is not None:
        await core.flush()
    fault = blocking_fault(core)
    if fault is not None:
        raise fault


async def remove_snapshot(core: CacheCore, record: KnownSnapshot, change: LedgerChange | None = None) -> Removal:
    """Remove exactly this snapshot; `change` is committed with the intent.

    Raises SnapshotInUseError, SnapshotChangedError, SnapshotPendingError, StoreUnavailableError or
    LedgerUnavailableError; then the snapshot still stands.
    """
    core.crash_point("removal-before-intent")
    await _record_intent(core, record, change or LedgerChange())
    record.purging = True
    core.show(record, record.facts)
    core.crash_point("removal-after-intent")
    try:
        removal = await core.in_store(_remove_unless_used, core.store, record.entry)
    except SnapshotError:
        record.purging = False
        core.show(record, record.facts)
        core.journal.note_removal_ended(record.key)
        raise
    core.crash_point("removal-after-store")
    core.forget(record)
    return removal


async def _record_intent(core: CacheCore, record: KnownSnapshot, change: LedgerChange) -> None:
    try:
        await core.commit(
            LedgerChange(state=change.state, removal_begun=record.key),
            urgent=not core.removal_is_its_own_record,
        )
    except LedgerUnavailableError:
        # With no byte free the ledger cannot be written, and the durable rename into the trash is record enough.
        if blocking_fault(core) is not None:
            raise


def _remove_unless_used(store: Store, entry: StoredSnapshot) -> Removal:
    if entry.snapshot_id and entry.snapshot_id in store.in_use_ids():
        raise SnapshotInUseError(f"the engine says that a VM uses snapshot {quoted(entry.name)}")
    return store.remove(entry)
