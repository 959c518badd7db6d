"""The `cocoon` store: the engine's snapshots, by the engine's command line.

The engine owns locking and its index. This store asks it what there is, looks at the data only for sizes, and removes
one snapshot at a time by its full id. The engine creates a missing root and then reports no snapshots with success, so
the marker is checked before every command, and "none" is believed only when its data directory is empty too.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from agent.snapshots.errors import (
    SnapshotChangedError,
    SnapshotNotFoundError,
    SnapshotPendingError,
    StoreFault,
    StoreUnavailableError,
    quoted,
)
from agent.snapshots.names import require_readable_name, require_store_name
from agent.snapshots.stores.contract import (
    ChangeMark,
    Changes,
    EntryCondition,
    FileSystemUsage,
    Inventory,
    LedgerIdentity,
    Removal,
    StoredSnapshot,
    StoreOpening,
    nothing,
)
from agent.snapshots.stores.engine_command import NO_SNAPSHOTS, NO_VMS, EngineSettings, list_records
from agent.snapshots.stores.engine_layout import (
    SNAPSHOT_DIRECTORY,
    EngineData,
    fingerprint,
    index_signature,
)
from agent.snapshots.stores.engine_listing import (
    EngineListing,
    IndexMark,
    compare_listings,
    foreign_entries,
)
from agent.snapshots.stores.engine_removals import EngineRemovals
from agent.snapshots.stores.identity import StoreIdentity
from agent.snapshots.stores.removal_record import RemovalRecord
from agent.snapshots.stores.system_errors import store_unavailable
from agent.snapshots.stores.usage import file_system_usage

RECORD_FILE = "cocoon-snapshot-rm"
# Longer ones are waited for by trying again: meanwhile the agent answers what does not need the store.
WAIT_FOR_REMOVAL_SECONDS = 5.0

_Result = TypeVar("_Result")


class CocoonStore:
    """The engine's store. Implements `agent.snapshots.stores.contract.Store`.

    `state_dir` is the ledger's directory; the record of a running removal is kept there.
    """

    kind = "cocoon"
    removes_at_once = False

    def __init__(
        self, settings: EngineSettings, *, state_dir: str, wait_for_removal_seconds: float = WAIT_FOR_REMOVAL_SECONDS
    ) -> None:
        self.location = settings.root_dir
        self._settings = settings
        self._identity = StoreIdentity(os.path.join(settings.root_dir, SNAPSHOT_DIRECTORY))
        record = RemovalRecord(os.path.join(state_dir, RECORD_FILE))
        self._removals = EngineRemovals(settings, record, self._with_listing, self.in_use_ids)
        self._wait_for_removal_seconds = wait_for_removal_seconds

    def open(self, ledger: LedgerIdentity) -> StoreOpening:
        """See `Store.open`."""
        if ledger.store_id is None and not ledger.knows_snapshots:
            self._create_snapshot_directory()
        origin = self._identity.open(ledger)
        try:
            self._removals.open(self._wait_for_removal_seconds)
        except StoreUnavailableError:
            self._identity.close()
            raise
        return StoreOpening(store_id=self._identity.store_id or "", origin=origin)

    def accept(self) -> str:
        """See `Store.accept`."""
        return self._identity.accept()

    def check(self) -> None:
        """See `Store.check`."""
        with self._identity.checked_root():
            pass

    def resume(self) -> None:
        """See `Store.resume`."""
        self._removals.resume()

    def wait_for_resumed(self) -> None:
        """See `Store.wait_for_resumed`."""
        self._removals.wait_for_resumed()

    def scan_all(self) -> Inventory:
        """See `Store.scan_all`."""
        return self._with_listing(
            lambda listing: Inventory(
                entries=tuple(
                    entry for name in listing.names() if (entry := listing.entry(name, self._removals.unfinished))
                ),
                foreign=foreign_entries(listing.data),
                mark=listing.mark,
            )
        )

    def changed_since(self, mark: ChangeMark) -> Changes:
        """See `Store.changed_since`. It asks the engine only when its index has changed."""
        if not isinstance(mark, IndexMark):
            raise TypeError("the mark is another store's")
        with self._identity.checked_root() as root:
            if mark.signature and index_signature(root) == mark.signature:
                return Changes(changed=frozenset(), gone=frozenset(), mark=mark)
        return self._with_listing(lambda listing: compare_listings(mark, listing))

    def rescan(self, names: Collection[str]) -> Mapping[str, StoredSnapshot | None]:
        """See `Store.rescan`."""
        unfinished = self._removals.unfinished
        return self._with_listing(lambda listing: {name: listing.entry(name, unfinished) for name in names})

    def verify(self, name: str) -> StoredSnapshot:
        """See `Store.verify`."""
        require_readable_name(name)
        entry = self.rescan([name])[name]
        if entry is None:
            raise SnapshotNotFoundError(f"there is no snapshot {quoted(name)} in {self.location}")
        return entry

    def held(self) -> contextlib.AbstractContextManager[None]:
        """See `Store.held`. Between two calls the engine has been run, so each asks again."""
        return contextlib.nullcontext()

    def remove(self, entry: StoredSnapshot, begun: Callable[[], object] = nothing) -> Removal:
        """See `Store.remove`. The space comes back before the answer: the engine removes data and name in one go."""
        if entry.condition is EntryCondition.PENDING:
            raise SnapshotPendingError(f"{quoted(entry.name)} is being written")
        name, snapshot_id = require_store_name(entry.name), require_store_name(entry.snapshot_id, field="snapshot_id")
        is_removed = self._removals.remove(snapshot_id, lambda: self._fingerprint(name, snapshot_id), begun)
        return Removal(name=name, snapshot_id=snapshot_id, already_gone=not is_removed, pending_bytes=0)

    def in_use_ids(self) -> frozenset[str]:
        """See `Store.in_use_ids`: ids of snapshots that were created from a VM that exists."""
        self.check()
        found: set[str] = set()
        for vm in list_records(self._settings, "vm", "list", "-o", "json", none_text=NO_VMS):
            ids = vm.get("snapshot_ids")
            ids = [] if ids is None else ids
            if not isinstance(ids, dict | list) or not all(isinstance(snapshot_id, str) for snapshot_id in ids):
                raise StoreUnavailableError(
                    "the answer of cocoon vm list cannot be understood: snapshot_ids are not a set of ids",
                    fault=StoreFault.ENGINE_ANSWER_UNREADABLE,
                )
            found.update(ids)
        self.check()
        return frozenset(found)

    def trash_bytes(self) -> int:
        """See `Store.trash_bytes`. There is no trash: a removal that has been answered has given its space back."""
        return 0

    def usage(self) -> FileSystemUsage:
        """See `Store.usage`."""
        with self._identity.checked_root() as root:
            try:
                return file_system_usage(root)
            except OSError as error:
                raise store_unavailable("measure", self.location, error) from error

    def close(self) -> None:
        """See `Store.close`. A removal by the engine that is under way goes on; the next start waits for it."""
        self._identity.close()

    def _with_listing(self, use: Callable[[EngineListing], _Result]) -> _Result:
        with self._identity.checked_root() as root:
            signature = index_signature(root)
            records = list_records(self._settings, "snapshot", "list", "-o", "json", none_text=NO_SNAPSHOTS)
            # The disk may have gone while the engine looked; what it then says is about an empty directory.
            self.check()
            try:
                data = EngineData(root)
                if not records and data.directory_names:
                    raise StoreUnavailableError(
                        f"the engine lists no snapshot while {len(data.directory_names)} lie in {self.location}; "
                        "a failed list is not an empty list",
                        fault=StoreFault.ENGINE_ANSWER_UNREADABLE,
                    )
                return use(EngineListing(signature, records, data))
            except OSError as error:
                raise store_unavailable("read the data of", self.location, error) from error

    def _fingerprint(self, name: str, snapshot_id: str) -> int | None:
        """Return the fingerprint of this snapshot's data, None if the engine does not have it any more.

        Raises SnapshotChangedError if the name is another's now, or the snapshot has another name.
        """

        def look(listing: EngineListing) -> int | None:
            envelope = listing.envelopes.get(name)
            if envelope is not None and envelope.snapshot_id == snapshot_id:
                return fingerprint(listing.data, snapshot_id)
            if envelope is not None:
                raise SnapshotChangedError(f"another snapshot stands under the name {quoted(name)} now")
            if listing.has_id(snapshot_id):
                raise SnapshotChangedError(f"the snapshot {quoted(snapshot_id)} has another name now")
            return None

        return self._with_listing(look)

    def _create_snapshot_directory(self) -> None:
        """Make the engine's directory for snapshots on a host that never had one, but not the engine's root."""
        try:
            os.mkdir(self._identity.directory, 0o750)
        except FileExistsError:
            return
        except OSError as error:
            raise store_unavailable("create the store", self._identity.directory, error) from error
