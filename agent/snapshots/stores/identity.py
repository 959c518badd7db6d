"""Is this the right disk? The marker file, the rule that decides by it, and the lock of one process per store.

An unmounted disk looks like an empty store, so the marker's id is compared with the ledger's before anything else is
done, and again at the beginning of each later operation. The marker is written only when neither side knew the other.
"""

import contextlib
import errno
import fcntl
import os
import re
import threading
import uuid
from collections.abc import Iterator

from agent.snapshots.errors import StoreFault, StoreUnavailableError, quoted
from agent.snapshots.stores.contract import LedgerIdentity, StoreOrigin
from agent.snapshots.stores.system_errors import store_unavailable

MARKER_FILE = ".cocoon-node-store"
_MARKER_TEMPORARY = re.compile(re.escape(MARKER_FILE) + r"\.[0-9a-f]{32}")
_STORE_ID = re.compile(rb"[0-9a-f]{32}\n?")
# Unlike a snapshot's directory the root itself may be reached by a symbolic link: operators move stores that way.
_OPEN_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def decide_origin(ledger: LedgerIdentity, marker_id: str | None) -> StoreOrigin | StoreFault:
    """Decide whether a store with this marker, None for no marker, belongs to the ledger.

    A ledger that was once written for a store never accepts one without a marker: that is what an unmounted disk looks
    like. It accepts another store only while it knows nothing of any snapshot, and then as unknown territory.
    """
    if marker_id is None:
        is_new = ledger.store_id is None and not ledger.knows_snapshots
        return StoreOrigin.FIRST_START if is_new else StoreFault.MARKER_MISSING
    if marker_id == ledger.store_id:
        return StoreOrigin.MATCHED
    return StoreFault.MARKER_DIFFERENT if ledger.knows_snapshots else StoreOrigin.REBUILT


def is_own_file(name: str) -> bool:
    """Tell whether a name is the marker's, or that of a marker whose writing was interrupted."""
    return name == MARKER_FILE or _MARKER_TEMPORARY.fullmatch(name) is not None


class StoreIdentity:
    """The marker and the lock of the store in one directory. May be used from several threads.

    Attributes:
        directory: Path of the directory the marker is in.
        store_id: Id of the opened store; None before `open`.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store_id: str | None = None
        self._lock: int | None = None
        self._locked_file: tuple[int, int] | None = None
        self._lock_guard = threading.Lock()

    def open(self, ledger: LedgerIdentity) -> StoreOrigin:
        """Compare marker and ledger, write the marker at the first start, take the lock."""
        with self.root() as root:
            marker_id = self._read_marker(root)
            verdict = decide_origin(ledger, marker_id)
            if isinstance(verdict, StoreFault):
                raise self._refusal(verdict, ledger, marker_id)
            if verdict is StoreOrigin.FIRST_START:
                marker_id = self._write_marker(root)
            self._take_lock(root)
            self.store_id = marker_id
        return verdict

    def accept(self) -> str:
        """Return the id of the marker; write one where none is or where it cannot be understood."""
        with self.root() as root:
            try:
                marker_id = self._read_marker(root)
            except StoreUnavailableError as error:
                if error.fault is not StoreFault.MARKER_UNREADABLE:
                    raise
                self._remove_marker(root)
                marker_id = None
            return marker_id or self._write_marker(root)

    def marker(self) -> str | None:
        """Return the id of the marker, None where none is; takes no lock and writes nothing."""
        with self.root() as root:
            return self._read_marker(root)

    @contextlib.contextmanager
    def checked_root(self) -> Iterator[int]:
        """Give the open directory if it is still the opened store's, else raise StoreUnavailableError.

        It is opened anew by its path each time: a descriptor kept would go on seeing a disk that has been unmounted.
        """
        if self.store_id is None:
            raise StoreUnavailableError(f"the store {self.directory} has not been opened", fault=StoreFault.NOT_OPEN)
        with self.root() as root:
            marker_id = self._read_marker(root)
            if marker_id != self.store_id:
                fault = StoreFault.MARKER_MISSING if marker_id is None else StoreFault.MARKER_DIFFERENT
                ledger = LedgerIdentity(store_id=self.store_id, knows_snapshots=True)
                raise self._refusal(fault, ledger, marker_id)
            if not self._has_lock(root):
                self._take_lock(root)
            yield root

    @contextlib.contextmanager
    def root(self) -> Iterator[int]:
        """Give the open directory without asking what it is."""
        try:
            root = os.open(self.directory, _OPEN_ROOT)
        except OSError as error:
            raise store_unavailable("open the store", self.directory, error) from error
        try:
            yield root
        finally:
            os.close(root)

    def close(self) -> None:
        """Give back the lock."""
        self.store_id = None
        self._drop_lock()

    def _read_marker(self, root: int) -> str | None:
        try:
            marker = os.open(MARKER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._marker_unreadable(error.strerror or str(error)) from error
        try:
            content = os.read(marker, 64)
        except OSError as error:
            raise store_unavailable("read the marker of", self.directory, error) from error
        finally:
            os.close(marker)
        if not _STORE_ID.fullmatch(content):
            raise self._marker_unreadable("it does not hold an id")
        return content.decode("ascii").strip()

    def _remove_marker(self, root: int) -> None:
        try:
            os.unlink(MARKER_FILE, dir_fd=root)
        except OSError as error:
            raise store_unavailable("replace the marker of", self.directory, error) from error

    def _write_marker(self, root: int) -> str:
        store_id = uuid.uuid4().hex
        temporary = f"{MARKER_FILE}.{store_id}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o644, dir_fd=root)
            try:
                os.write(descriptor, store_id.encode("ascii") + b"\n")
                os.fsync(descriptor)
                # A link, unlike a rename, fails when another process has written the marker in between.
                os.link(temporary, MARKER_FILE, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
            finally:
                os.close(descriptor)
                os.unlink(temporary, dir_fd=root)
            os.fsync(root)
        except OSError as error:
            raise store_unavailable("write the marker of", self.directory, error) from error
        return store_id

    def _has_lock(self, root: int) -> bool:
        """Tell whether the lock that is held is on the marker that is there now."""
        try:
            status = os.stat(MARKER_FILE, dir_fd=root, follow_symlinks=False)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._locked_file

    def _take_lock(self, root: int) -> None:
        """Hold the lock on the marker that is there now; a disk that was mounted again has to be locked again."""
        try:
            marker = os.open(MARKER_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        except OSError as error:
            raise store_unavailable("lock", self.directory, error) from error
        with self._lock_guard:
            if self._lock is not None and os.path.sameopenfile(self._lock, marker):
                os.close(marker)
                return
            try:
                fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(marker)
                raise self._lock_refused(error) from error
            if self._lock is not None:
                os.close(self._lock)
            self._lock = marker
            locked = os.fstat(marker)
            self._locked_file = locked.st_dev, locked.st_ino

    def _drop_lock(self) -> None:
        with self._lock_guard:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = self._locked_file = None

    def _lock_refused(self, error: OSError) -> StoreUnavailableError:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return store_unavailable("lock", self.directory, error)
        return StoreUnavailableError(
            f"another process uses the store {self.directory}; only one may, so stop the other agent or command",
            fault=StoreFault.LOCKED,
        )

    def _marker_unreadable(self, cause: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"cannot read the marker {MARKER_FILE} in {self.directory}: {cause}; "
            "if this is the right disk, run: cocoon-node-agent accept store",
            fault=StoreFault.MARKER_UNREADABLE,
        )

    def _refusal(self, fault: StoreFault, ledger: LedgerIdentity, marker_id: str | None) -> StoreUnavailableError:
        found = f"it has the marker {quoted(marker_id)}" if marker_id else f"it has no marker {MARKER_FILE}"
        expected = f"the ledger knows {quoted(ledger.store_id)}" if ledger.store_id else "the ledger knows snapshots"
        return StoreUnavailableError(
            f"{self.directory} is not the store the ledger belongs to: {found}, {expected}; mount the right disk, "
            "or if this one is right, run: cocoon-node-agent accept store",
            fault=fault,
        )
