"""What every snapshot store promises, so that the cache never needs to know which one it has.

A store lists what is there, tells cheaply whether anything changed, and removes in two steps. It decides nothing: who
owns a snapshot, what is kept and what goes is the cache's business. One conformance suite holds every store to this.

All methods block and may be called from any thread; the cache calls them from threads of its own, never from the event
loop. Listing and removing may run at the same time. Every method but `open` and `close` begins with the question
whether this is still the right disk, and raises `StoreUnavailableError` when it is not: a failed list is never an empty
list. Methods raise nothing but the types of `agent.snapshots.errors`.
"""

import enum
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec


class EntryCondition(enum.Enum):
    """How far an entry of a store could be read.

    `UNREADABLE` is a problem (EIO, EACCES, …), never a verdict; `INVALID` was read completely and is wrong.
    """

    READY = "READY"
    PENDING = "PENDING"
    INVALID = "INVALID"
    UNREADABLE = "UNREADABLE"


class LinkedFile(msgspec.Struct, frozen=True, gc=False):
    """A file of a snapshot that has further hard links, here or elsewhere.

    Its `allocated_bytes` come back only when all of its `link_count` links are gone; `links_here` of them are in this
    snapshot. Two entries with the same `device` and `inode` share the file.
    """

    device: int
    inode: int
    link_count: int
    links_here: int
    allocated_bytes: int


class StoredSnapshot(msgspec.Struct, frozen=True, gc=False):
    """One entry of a store as last read: a snapshot, or one that is being written.

    Attributes:
        name: Unique in the store. A pending entry's is the name it is being written under (`.pending-…` in the
            directory store), which is never a valid snapshot name; an engine's snapshot without a name has its id here.
        snapshot_id: Id from the metadata; empty when the metadata cannot be read.
        condition: How far it could be read.
        target_name: Name the snapshot carries, or will carry when it is complete; empty when that cannot be told.
            Equal to `name` for everything that is not pending.
        allocated_bytes: Disk space of all its files, hard-linked ones included, in bytes.
        exclusive_bytes: The part of it that its removal gives back whatever else is removed, in bytes.
        apparent_bytes: Sum of its files' lengths, in bytes.
        linked_files: Files with further hard links, each once.
        created_at: Wall-clock time of creation, Unix seconds; 0 when unknown.
        last_use_at: Wall-clock time of last use as far as the store can tell, Unix seconds; 0 when unknown.
        image, hypervisor, cpu_count, memory_bytes: From the metadata; empty or 0 when unknown.
        problems: What a person should know, each one sentence.
        version: Opaque; differs whenever another thing stands under the name. `remove` compares it.
    """

    name: str
    snapshot_id: str
    condition: EntryCondition
    target_name: str
    allocated_bytes: int
    exclusive_bytes: int
    apparent_bytes: int
    linked_files: tuple[LinkedFile, ...] = ()
    created_at: float = 0.0
    last_use_at: float = 0.0
    image: str = ""
    hypervisor: str = ""
    cpu_count: int = 0
    memory_bytes: int = 0
    problems: tuple[str, ...] = ()
    version: int | str = 0


class ForeignEntries(msgspec.Struct, frozen=True):
    """Things in the store that are not snapshots: never touched, only reported.

    `count` is exact; `examples` has at most 20 names, sorted, each with what it is in parentheses.
    """

    count: int = 0
    examples: tuple[str, ...] = ()


class ChangeMark:
    """Opaque state of a store at one moment; compare only by handing it back to `changed_since` of the same store."""

    __slots__ = ()


class Inventory(msgspec.Struct, frozen=True):
    """A complete look at a store. The mark was taken before the look began, so that no change falls between."""

    entries: tuple[StoredSnapshot, ...]
    foreign: ForeignEntries
    mark: ChangeMark


class Changes(msgspec.Struct, frozen=True):
    """What to read again since a mark: `changed` and new names, and names that are `gone`; plus the new mark.

    `foreign` is set only when the store was listed again; None means as before.
    """

    changed: frozenset[str]
    gone: frozenset[str]
    mark: ChangeMark
    foreign: ForeignEntries | None = None


class Removal(msgspec.Struct, frozen=True):
    """A removal that is durable: the name is free. `already_gone` when there was nothing left to remove.

    `pending_bytes` is the disk space that has not come back yet and is counted in `trash_bytes` until it has.
    """

    name: str
    snapshot_id: str
    already_gone: bool
    pending_bytes: int


class FileSystemUsage(msgspec.Struct, frozen=True):
    """The store's file system. Available is what this process may use; inodes are 0 where none are counted."""

    device: int
    total_bytes: int
    available_bytes: int
    total_inodes: int
    available_inodes: int
    read_only: bool


class LedgerIdentity(msgspec.Struct, frozen=True):
    """What the ledger knows of the store it belongs to: `store_id` is None in a ledger that has just been created.

    `knows_snapshots`: the ledger holds a record (owner, retention, removal, first sight) of at least one snapshot.
    """

    store_id: str | None
    knows_snapshots: bool


class StoreOrigin(enum.Enum):
    """How the store and the ledger found each other at start.

    `FIRST_START`: neither knew the other, the marker has been written. `REBUILT`: a marker was there and the ledger
    knows nothing of it, so everything counts as in use until owners are synced. `MATCHED`: they belong together.
    """

    FIRST_START = "FIRST_START"
    MATCHED = "MATCHED"
    REBUILT = "REBUILT"


class StoreOpening(msgspec.Struct, frozen=True):
    """Result of opening a store: the id the ledger must hold from now on, and how it came about."""

    store_id: str
    origin: StoreOrigin


def nothing() -> None:
    """Do nothing."""


class Store(Protocol):
    """The promises. `kind` is the value of COCOON_NODE_STORE, `location` the path people know the store by.

    `removes_at_once`: a removal is a few file operations, whatever it removes; otherwise it may take minutes.
    """

    kind: str
    location: str
    removes_at_once: bool

    def open(self, ledger: LedgerIdentity) -> StoreOpening:
        """Check that this is the right disk, take the lock, wait for what an earlier process left running.

        Creates the marker (and the store's directory, if its parent exists) only when the ledger knows no snapshot.
        May be called again after an error, and after the disk came back.
        Raises StoreUnavailableError; then nothing was created, removed or asked of the engine.
        """
        ...

    def accept(self) -> str:
        """Take the store that is mounted now as the right one, by an operator's command, and return its id.

        Writes a marker where none is. For a closed store; the caller writes the id to the ledger, then opens.
        """
        ...

    def check(self) -> None:
        """Return if this is still the right disk, else raise StoreUnavailableError. Costs a few system calls."""
        ...

    def resume(self) -> None:
        """Go on with removals that an earlier process began. Returns at once; space comes back in the background."""
        ...

    def wait_for_resumed(self) -> None:
        """Return when no resumed removal stands in the way of another one."""
        ...

    def scan_all(self) -> Inventory:
        """Read everything."""
        ...

    def changed_since(self, mark: ChangeMark) -> Changes:
        """Tell what to read again; with nothing changed it costs at most one `stat` a snapshot."""
        ...

    def rescan(self, names: Collection[str]) -> Mapping[str, StoredSnapshot | None]:
        """Read the named entries again; None for one that is not there. Every name asked for is in the result."""
        ...

    def verify(self, name: str) -> StoredSnapshot:
        """Read one snapshot again, metadata and sizes. Raises InvalidNameError or SnapshotNotFoundError."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """Let several calls of this thread, made one right after the other, ask once whether it is the right disk."""
        ...

    def remove(self, entry: StoredSnapshot, begun: Callable[[], object] = nothing) -> Removal:
        """Free the name of exactly this entry, durably.

        A store that does not remove at once calls `begun`, in this thread, when all checks have been made and the
        removal runs: from then on there is nothing to do but wait for its end.
        Raises SnapshotChangedError when another thing stands under the name, SnapshotPendingError for a pending entry,
        InvalidNameError for a name that this store never removes, StoreUnavailableError; then the name still stands.
        Repeating it, also after a crash, gives `already_gone`.
        """
        ...

    def in_use_ids(self) -> frozenset[str]:
        """Return ids of snapshots that the engine says a VM uses. Raises StoreUnavailableError if it cannot tell."""
        ...

    def trash_bytes(self) -> int:
        """Return the disk space of removed snapshots that has not come back yet, in bytes. Never blocks on I/O."""
        ...

    def usage(self) -> FileSystemUsage:
        """Return how full the store's file system is."""
        ...

    def close(self) -> None:
        """Stop background work (it resumes at the next start) and give back the lock. May be repeated."""
        ...
