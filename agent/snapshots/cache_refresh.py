"""Brings the inventory up to what the store holds: the first look, the cheap look for changes, and single names.

Why this exists: what appears in the store has to be matched with what the ledger knows of it. A snapshot is the same
one while its id is the same; its promises go with it, also when it was away in between. Another id under the name is
another snapshot, of which only the likely owner is carried over.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerRow
from agent.snapshots.model import NO_FACTS, Moment, SnapshotFacts
from agent.snapshots.ownership import likely_owner
from agent.snapshots.retention import decide_sync
from agent.snapshots.stores.contract import ChangeMark, Changes, EntryCondition, Store, StoredSnapshot

_CHUNK = 500
# What waits to be written down takes as much room as what is known; a first look is not to hold all of it.
_RECORDED_CHUNK = 4000


class Refresher:
    """Looks at the store and tells the core. Methods that look are called under the core's lock."""

    def __init__(self, core: CacheCore) -> None:
        self._core = core
        self._recorded: dict[str, LedgerRow] = {}

    @property
    def knows_snapshots(self) -> bool:
        """Whether the ledger records anything of a snapshot."""
        return bool(self._recorded or self._core.journal.gone)

    def load(self, rows: Iterable[LedgerRow]) -> None:
        """Take what the ledger knows of snapshots, before the first look."""
        for row in rows:
            if row.gone is None:
                self._recorded[row.name] = row
            else:
                self._core.journal.gone[(row.name, row.snapshot_id)] = row.facts

    async def look_at_everything(self) -> None:
        """Read the whole store. Raises StoreUnavailableError, and then nothing has changed."""
        core = self._core
        inventory = await core.in_store(core.store.scan_all)
        in_use = await core.in_store(core.store.in_use_ids)
        entries: dict[str, StoredSnapshot | None] = {entry.name: entry for entry in inventory.entries}
        for record in core.inventory.all():
            entries.setdefault(record.name, None)
        await self._apply(entries)
        core.mark = inventory.mark
        core.foreign_entries = inventory.foreign
        self._forget_vanished()
        self._note_in_use(in_use)
        core.note_store_fault(None)

    async def look_for_changes(self, *, ask_engine: bool = False) -> None:
        """Read what has changed since the last look. Raises StoreUnavailableError, and then nothing has changed.

        `ask_engine`: ask what VMs use too.
        """
        core = self._core
        if core.mark is None:
            await self.look_at_everything()
            return
        changes, entries = await core.in_store(_changed_entries, core.store, core.mark)
        in_use = await core.in_store(core.store.in_use_ids) if ask_engine else None
        await self._apply(entries)
        core.mark = changes.mark
        if changes.foreign is not None:
            core.foreign_entries = changes.foreign
        if in_use is not None:
            self._note_in_use(in_use)
        core.note_store_fault(None)

    async def sees_change(self) -> bool:
        """Whether the store shows any change since the last look; does not need the lock."""
        core, mark = self._core, self._core.mark
        if mark is None:
            return True
        changes = await core.in_store(core.store.changed_since, mark)
        return bool(changes.changed or changes.gone)

    async def look_at(self, names: Collection[str]) -> None:
        """Read single names again. Raises StoreUnavailableError, and then nothing has changed."""
        core = self._core
        if not names:
            return
        await self._apply(await core.in_store(core.store.rescan, names))
        if core.mark is not None:
            # Before the first look some names are not the whole picture.
            core.note_store_fault(None)

    async def _apply(self, entries: Mapping[str, StoredSnapshot | None]) -> None:
        moment = self._core.moment()
        # Most of what a look finds anew is recorded alike, so that one value serves for all of it.
        shared: dict[SnapshotFacts, SnapshotFacts] = {}
        for number, (name, entry) in enumerate(entries.items(), start=1):
            record = self._core.inventory.get(name)
            if entry is None:
                if record is not None:
                    self._core.observe_gone(record)
            elif record is None or record.entry != entry:
                self._take(record, entry, moment, shared)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
            if number % _RECORDED_CHUNK == 0:
                await self._core.flush()

    def _take(
        self,
        old: KnownSnapshot | None,
        entry: StoredSnapshot,
        moment: Moment,
        shared: dict[SnapshotFacts, SnapshotFacts],
    ) -> None:
        """Show an entry that is new or differs from what was known under its name."""
        core = self._core
        row = self._recorded.get(entry.name)
        known_id = old.snapshot_id if old is not None else row.snapshot_id if row is not None else None
        snapshot_id, facts, recorded = self._match(old, entry)
        is_same = old is not None and snapshot_id == old.snapshot_id
        if old is not None and not is_same:
            core.observe_gone(old)
        record = KnownSnapshot(entry, snapshot_id, recorded)
        if entry.condition is EntryCondition.UNREADABLE and old is not None and is_same:
            record.invalid = old.invalid
        if old is not None and is_same:
            record.purging = old.purging
            if old.entry.version == entry.version:
                record.seen, record.unclaimed_since = old.seen, old.unclaimed_since
        claimants = core.owners.claimants(entry.target_name)
        # What was there when these owners were synced has heard of them, and what it was promised since is newer.
        if claimants and not record.is_pending and snapshot_id != known_id:
            decision = decide_sync(
                facts, (), claimants, keepable=False, trusted_prefixes=core.settings.trusted_vm_prefixes, moment=moment
            )
            facts = decision.facts
            core.journal.note_superseded(decision.superseded_uids)
        settled = core.settled(record, facts, moment)
        core.observe(record, shared.setdefault(settled, settled))

    def _match(self, old: KnownSnapshot | None, entry: StoredSnapshot) -> tuple[str, SnapshotFacts, SnapshotFacts]:
        """Return id, facts to go on from, and facts as the ledger has them now for an entry."""
        core = self._core
        row = self._recorded.pop(entry.name, None)
        before = (old.snapshot_id, old.facts) if old else (row.snapshot_id, row.facts) if row else ("", NO_FACTS)
        snapshot_id = entry.snapshot_id or before[0]
        if snapshot_id == before[0]:
            return snapshot_id, before[1], before[1]
        back = core.journal.gone.pop((entry.name, snapshot_id), None)
        if row is not None:
            core.journal.observe_gone((row.name, row.snapshot_id), row.facts)
        if back is not None:
            # Its absence interrupts the grace period: whoever brings a snapshot back has that time again.
            return snapshot_id, replace(back, unclaimed_at=None), NO_FACTS
        if not before[0]:
            return snapshot_id, before[1], NO_FACTS
        claimants = core.owners.claimants(entry.target_name)
        owner = likely_owner(before[1].owner, claimants, core.settings.trusted_vm_prefixes)
        return snapshot_id, SnapshotFacts(owner=owner, guessed=owner is not None), NO_FACTS

    def _forget_vanished(self) -> None:
        """File as gone what the ledger knows and the first look did not find."""
        for row in self._recorded.values():
            self._core.journal.observe_gone((row.name, row.snapshot_id), row.facts)
        self._recorded.clear()

    def _note_in_use(self, in_use: frozenset[str]) -> None:
        core = self._core
        changed = in_use ^ core.engine_in_use
        if changed:
            core.engine_in_use = in_use
            core.restate([record.name for record in core.inventory.all() if record.snapshot_id in changed])


def _changed_entries(store: Store, mark: ChangeMark) -> tuple[Changes, dict[str, StoredSnapshot | None]]:
    changes = store.changed_since(mark)
    entries: dict[str, StoredSnapshot | None] = dict.fromkeys(changes.gone)
    if changes.changed:
        entries.update(store.rescan(changes.changed))
    return changes, entries
