"""The `directory` store: every snapshot is a directory with its metadata beside its data.

Writers work in `.pending-*` and rename into place, so a directory's modification time is a true mark of change, and a
snapshot that has a name is whole. Removal is a rename into the trash. Everything else in the store is somebody's: it
is counted, shown, and never touched.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from agent.snapshots.errors import (
    SnapshotChangedError,
    SnapshotNotFoundError,
    SnapshotPendingError,
    StoreFault,
    StoreUnavailableError,
    quoted,
)
from agent.snapshots.names import is_store_name, require_readable_name, require_store_name
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
from agent.snapshots.stores.digests import version_of
from agent.snapshots.stores.directory_scan import PENDING_PREFIX, DirectoryMark, StoreScan, is_entry_name
from agent.snapshots.stores.identity import StoreIdentity
from agent.snapshots.stores.reclaim import Reclaimer
from agent.snapshots.stores.scan import METADATA_FILE, OPEN_DIRECTORY
from agent.snapshots.stores.system_errors import store_unavailable
from agent.snapshots.stores.trash import is_mistaken, make_durable, move_in, open_trash, set_free
from agent.snapshots.stores.usage import file_system_usage

ENGINE_DATA = ("snapshot", "localfile")


class DirectoryStore:
    """The store at `location`. Implements `agent.snapshots.stores.contract.Store`."""

    kind = "directory"
    removes_at_once = True

    def __init__(self, location: str, *, cocoon_root_dir: str) -> None:
        self.location = location
        self._engine_data = os.path.join(cocoon_root_dir, *ENGINE_DATA)
        self._identity = StoreIdentity(location)
        self._held = threading.local()
        self._removal = threading.Lock()
        self._reclaimer = Reclaimer(self._trash, self._removal)

    def open(self, ledger: LedgerIdentity) -> StoreOpening:
        """See `Store.open`."""
        self._refuse_beside_engine()
        if ledger.store_id is None and not ledger.knows_snapshots:
            self._create_location()
        origin = self._identity.open(ledger)
        return StoreOpening(store_id=self._identity.store_id or "", origin=origin)

    def accept(self) -> str:
        """See `Store.accept`."""
        self._refuse_beside_engine()
        return self._identity.accept()

    def check(self) -> None:
        """See `Store.check`."""
        with self._identity.checked_root():
            pass

    def resume(self) -> None:
        """See `Store.resume`."""
        self._reclaimer.start()

    def wait_for_resumed(self) -> None:
        """See `Store.wait_for_resumed`. What is in the trash stands in nobody's way."""

    def scan_all(self) -> Inventory:
        """See `Store.scan_all`."""
        with self._root("list the store") as root:
            return StoreScan(root).everything()

    def changed_since(self, mark: ChangeMark) -> Changes:
        """See `Store.changed_since`. Last use and lengths changed in place show only in `scan_all` and `rescan`."""
        if not isinstance(mark, DirectoryMark):
            raise TypeError("the mark is another store's")
        with self._root("list the store") as root:
            return StoreScan(root).changes(mark)

    def rescan(self, names: Collection[str]) -> Mapping[str, StoredSnapshot | None]:
        """See `Store.rescan`."""
        with self._root("read the store") as root:
            scan = StoreScan(root)
            return {name: scan.entry(name) if is_entry_name(name) else None for name in names}

    def verify(self, name: str) -> StoredSnapshot:
        """See `Store.verify`."""
        require_readable_name(name)
        entry = self.rescan([name])[name] if is_store_name(name) else None
        if entry is None:
            raise SnapshotNotFoundError(f"there is no snapshot {quoted(name)} in {self.location}")
        return entry

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """See `Store.held`."""
        with self._identity.checked_root() as root:
            self._held.root = root
            try:
                yield
            finally:
                self._held.root = None

    def remove(self, entry: StoredSnapshot, begun: Callable[[], object] = nothing) -> Removal:
        """See `Store.remove`. Its cost does not depend on what is removed."""
        del begun
        if entry.condition is EntryCondition.PENDING or entry.name.startswith(PENDING_PREFIX):
            raise SnapshotPendingError(f"{quoted(entry.name)} is being written")
        name = require_store_name(entry.name)
        with self._removal, self._root(f"remove {quoted(name)} from") as root:
            present = _present(root, name)
            if present is None:
                # An earlier rename may be in memory only, if the process died before it was made durable.
                os.fsync(root)
                return Removal(name=name, snapshot_id=entry.snapshot_id, already_gone=True, pending_bytes=0)
            inode, version = present
            if version != entry.version:
                raise SnapshotChangedError(f"another snapshot stands under the name {quoted(name)} now")
            token = self._move_to_trash(root, name, inode)
            self._reclaimer.add(token, entry.exclusive_bytes)
        return Removal(
            name=name, snapshot_id=entry.snapshot_id, already_gone=False, pending_bytes=entry.exclusive_bytes
        )

    def in_use_ids(self) -> frozenset[str]:
        """See `Store.in_use_ids`. No engine stands behind this store: only owners tell what is in use."""
        with self._root("look at the store"):
            pass
        return frozenset()

    def trash_bytes(self) -> int:
        """See `Store.trash_bytes`."""
        return self._reclaimer.waiting_bytes()

    def usage(self) -> FileSystemUsage:
        """See `Store.usage`."""
        with self._root("measure") as root:
            return file_system_usage(root)

    def wait_until_reclaimed(self, timeout_seconds: float) -> bool:
        """Wait until the trash is empty, as far as it can be emptied; False when the time is over first."""
        return self._reclaimer.wait_until_idle(timeout_seconds)

    def close(self) -> None:
        """See `Store.close`."""
        self._reclaimer.stop()
        self._identity.close()

    def _move_to_trash(self, root: int, name: str, inode: int) -> str:
        with open_trash(root, self.location, create=True) as trash:
            token = move_in(root, name, trash, inode)
            if is_mistaken(trash, token):
                _put_back(root, name, trash, token)
                raise SnapshotChangedError(f"another snapshot took the name {quoted(name)} at this moment")
            try:
                make_durable(root, trash)
            except OSError:
                with contextlib.suppress(OSError):
                    _put_back(root, name, trash, token)
                raise
            return token

    @contextlib.contextmanager
    def _root(self, doing: str) -> Iterator[int]:
        held: int | None = getattr(self._held, "root", None)
        with self._identity.checked_root() if held is None else contextlib.nullcontext(held) as root:
            try:
                yield root
            except OSError as error:
                raise store_unavailable(doing, self.location, error) from error

    @contextlib.contextmanager
    def _trash(self) -> Iterator[int]:
        with self._identity.checked_root() as root, open_trash(root, self.location, create=True) as trash:
            yield trash

    def _refuse_beside_engine(self) -> None:
        if os.path.lexists(self._engine_data):
            raise StoreUnavailableError(
                f"the cocoon engine keeps its own snapshots in {self._engine_data}; set COCOON_NODE_STORE=cocoon to "
                "use them, because a directory store beside them would see none",
                fault=StoreFault.WRONG_KIND,
            )

    def _create_location(self) -> None:
        """Make the directory of a store that has never been, but not its parents: they say whether a disk is there."""
        try:
            os.mkdir(self.location, 0o700)
        except FileExistsError:
            return
        except OSError as error:
            raise store_unavailable("create the store", self.location, error) from error


def _present(root: int, name: str) -> tuple[int, int] | None:
    """Return inode and version of a directory of the store; None if nothing stands under the name. Raises OSError."""
    try:
        directory = os.open(name, OPEN_DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        return None
    try:
        inode = os.fstat(directory).st_ino
        try:
            metadata = os.stat(METADATA_FILE, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return inode, version_of(inode, None)
    finally:
        os.close(directory)
    return inode, version_of(inode, metadata if stat.S_ISREG(metadata.st_mode) else None)


def _put_back(root: int, name: str, trash: int, token: str) -> None:
    """Undo a rename. When the name is taken meanwhile, the thing is kept as pending, which is never removed."""
    try:
        os.rename(token, name, src_dir_fd=trash, dst_dir_fd=root)
    except OSError:
        set_free(trash, token)
    make_durable(root, trash)
