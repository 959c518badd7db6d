"""How a snapshot is removed: proof that records can be kept, last look, removal.

Why this exists: purge and collection decide differently and remove alike. What the engine uses is asked again right
before; the store compares that exactly the snapshot decided about still stands under the name, and its removal is its
own durable record. So a ledger whose disk is full does not stand in the way of the removal that gives space back; any
other fault of the ledger does. Called under the core's lock; what takes long goes on without it.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.errors import LedgerUnavailableError, SnapshotError, SnapshotInUseError, quoted
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.stores.contract import Removal, Store, StoredSnapshot, nothing

_DISK_FULL = "SQLITE_FULL"


async def require_ledger(core: CacheCore) -> None:
    """Write what waits to be written, and raise LedgerUnavailableError when the ledger forbids a removal."""
    if core.journal.fault is not None:
        await core.flush()
    fault = core.journal.fault
    if fault is not None and not _is_only_full(fault):
        raise fault


@dataclass(frozen=True, slots=True)
class BegunRemoval:
    """A removal that was decided under the lock and goes on without it: nothing can keep the store from it now."""

    record: KnownSnapshot
    work: "asyncio.Future[Removal]"

    async def wait(self) -> None:
        """Return when the store is done, whatever became of it; `end_removal` tells."""
        await asyncio.wait({self.work})


async def remove_snapshot(core: CacheCore, record: KnownSnapshot) -> Removal | BegunRemoval:
    """Remove exactly this snapshot, or as much of that as takes no long time.

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
    loop, has_begun = asyncio.get_running_loop(), asyncio.Event()
    work = asyncio.ensure_future(
        core.in_store(_remove_unless_used, core.store, record.entry, lambda: loop.call_soon_threadsafe(has_begun.set))
    )
    begun = BegunRemoval(record, work)
    core.turns.removal_began(record.name)
    if not core.store.removes_at_once:
        waiting = asyncio.ensure_future(has_begun.wait())
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not work.done():
            return begun
    await begun.wait()
    return end_removal(core, begun)


def end_removal(core: CacheCore, begun: BegunRemoval) -> Removal:
    """Note what has become of a removal that has come to its end, and return or raise it as `remove_snapshot` does.

    Another snapshot may stand under the name by now. Called under the lock.
    """
    record = core.inventory.get(begun.record.name)
    is_the_same = record is not None and record.key == begun.record.key
    try:
        removal = begun.work.result()
    except SnapshotError:
        if record is not None and is_the_same:
            _show_purging(core, [record], purging=False)
        raise
    finally:
        core.turns.removal_ended(begun.record.name)
    core.crash_point("removal-after-store")
    if is_the_same:
        core.forget(begun.record)
    else:
        core.journal.forget(begun.record.key)
    return removal


async def remove_as_known(
    core: CacheCore, names: Sequence[str], records: Sequence[KnownSnapshot]
) -> list[Removal | SnapshotError] | None:
    """Remove these snapshots in one turn of one thread, if the store shows all the names as they are known.

    Only for a store that removes at once: the ledger's thread does it, and everybody waits for that.
    Returns the outcome of each, or None when it shows them otherwise; then, and when StoreUnavailableError or
    LedgerUnavailableError is raised, nothing was removed.
    """
    known = core.known_entries(names)

    def work(commit: Callable[[], None]) -> list[Removal | SnapshotError] | None:
        with core.store.held():
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


def _remove_unless_used(store: Store, entry: StoredSnapshot, begun: Callable[[], object] = nothing) -> Removal:
    if entry.snapshot_id and entry.snapshot_id in store.in_use_ids():
        raise SnapshotInUseError(f"the engine says that a VM uses snapshot {quoted(entry.name)}")
    return store.remove(entry, begun)
