"""What the store holds and in which state each snapshot is, in memory, so that no answer walks the store.

Why this exists: a page of a hundred thousand snapshots has to cost as much as a page of a thousand. Names are kept
sorted for each state, counts and bytes are kept as sums, and a change of one snapshot touches nothing else. It is used
on the event loop only and does no I/O.
"""

import bisect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from agent.snapshots.feed import Change
from agent.snapshots.model import NO_FACTS, Situation, SnapshotFacts, SnapshotState, SyncPoint
from agent.snapshots.names import owned_names, owning_vm
from agent.snapshots.stores.contract import EntryCondition, StoredSnapshot

ALL_STATES = tuple(SnapshotState)


class KnownSnapshot(msgspec.Struct, eq=False, gc=False):
    """One snapshot: what the store says, what the ledger records, and the state that follows.

    There are very many, so none has a place in the books of the cyclic collector: none is part of a cycle.

    Attributes:
        entry: As last read.
        snapshot_id: The id last read; it stays while the metadata cannot be read.
        facts: As recorded in the ledger.
        state: As of the last change.
        invalid: The last verdict; it stays while the snapshot cannot be read.
        purging: Its removal has begun.
        seen, unclaimed_since: The first owner sync of this start at which it was there, and at which its name was
            claimed by nobody without interruption since.
    """

    entry: StoredSnapshot
    snapshot_id: str
    facts: SnapshotFacts = NO_FACTS
    state: SnapshotState = SnapshotState.PENDING
    invalid: bool = False
    purging: bool = False
    seen: SyncPoint | None = None
    unclaimed_since: SyncPoint | None = None

    def __post_init__(self) -> None:
        """Begin with the verdict of the look it was found at."""
        self.invalid = self.entry.condition is EntryCondition.INVALID

    @property
    def name(self) -> str:
        """Name in the store."""
        return self.entry.name

    @property
    def key(self) -> tuple[str, str]:
        """Name and id, as the ledger files it."""
        return self.entry.name, self.snapshot_id

    @property
    def vm_name(self) -> str:
        """The VM whose own it is or will be; empty for a shared one."""
        return owning_vm(self.entry.target_name)

    @property
    def is_pending(self) -> bool:
        """Whether it is being written."""
        return self.entry.condition is EntryCondition.PENDING

    @property
    def is_unreadable(self) -> bool:
        """Whether it could not be read, which is no verdict."""
        return self.entry.condition is EntryCondition.UNREADABLE

    @property
    def last_use_at(self) -> float:
        """Last use as far as anybody knows, Unix seconds."""
        return max(self.entry.last_use_at, self.entry.created_at, self.facts.last_used_at)

    def situation(self, *, claimed: bool, engine_in_use: bool, everything_in_use: bool) -> Situation:
        """Return what is the case around it."""
        return Situation(
            vm_owned=bool(self.vm_name),
            purging=self.purging,
            pending=self.is_pending,
            claimed=claimed,
            engine_in_use=engine_in_use,
            invalid=self.invalid,
            everything_in_use=everything_in_use,
        )


@dataclass(frozen=True, slots=True)
class StateTotal:
    """How many snapshots are in a state, and the disk space they occupy."""

    count: int
    allocated_bytes: int


class Inventory:
    """All known snapshots by name and by state. `on_change` is told of every change."""

    def __init__(self, on_change: Callable[[str, Change], object]) -> None:
        """Begin empty."""
        self._records: dict[str, KnownSnapshot] = {}
        self._names: dict[SnapshotState, list[str]] = {state: [] for state in ALL_STATES}
        self._bytes: dict[SnapshotState, int] = dict.fromkeys(ALL_STATES, 0)
        self._on_change = on_change
        # Not a set, which takes three times the room.
        self.unseen: dict[str, None] = {}
        """Names that no owner sync of this start has seen yet."""
        self.expiring: set[str] = set()
        """Names with a promise that ends by itself."""

    def __len__(self) -> int:
        return len(self._records)

    def get(self, name: str) -> KnownSnapshot | None:
        """Return the snapshot of that name."""
        return self._records.get(name)

    def all(self) -> Iterator[KnownSnapshot]:
        """Return every snapshot, in no order; the inventory must not change meanwhile."""
        return iter(self._records.values())

    def in_states(self, *states: SnapshotState) -> Iterator[KnownSnapshot]:
        """Return the snapshots in some states, by name within each; the inventory must not change meanwhile."""
        for state in states:
            for name in self._names[state]:
                yield self._records[name]

    def of_vm(self, vm_name: str) -> list[KnownSnapshot]:
        """Return the snapshots of a VM, those being written included, sorted by name."""
        found = [record for name in owned_names(vm_name) if (record := self._records.get(name)) is not None]
        pending = self.in_states(SnapshotState.PENDING)
        found.extend(record for record in pending if record.vm_name == vm_name and record not in found)
        return sorted(found, key=lambda record: record.name)

    def put(self, record: KnownSnapshot, state: SnapshotState) -> None:
        """Add a snapshot, or note that it has changed, possibly into another state."""
        name = record.name
        old = self._records.get(name)
        if old is not None:
            self._forget(old)
        record.state = state
        self._records[name] = record
        self._bytes[state] += record.entry.allocated_bytes
        _insert(self._names[state], name)
        if record.seen is None:
            self.unseen[name] = None
        if any(kept.expires_at is not None for kept in record.facts.retentions):
            self.expiring.add(name)
        self._on_change(name, Change.ADDED if old is None else Change.CHANGED)

    def remove(self, name: str) -> KnownSnapshot | None:
        """Take out a snapshot that is gone, and return it."""
        record = self._records.pop(name, None)
        if record is not None:
            self._forget(record)
            self._on_change(name, Change.REMOVED)
        return record

    def totals(self) -> dict[SnapshotState, StateTotal]:
        """Return count and bytes of every state."""
        return {state: StateTotal(len(self._names[state]), self._bytes[state]) for state in ALL_STATES}

    def page(self, after: str, size: int, states: Collection[SnapshotState] | None = None) -> list[KnownSnapshot]:
        """Return at most `size` snapshots with names above `after`, sorted by name, in these states or in any."""
        found: list[str] = []
        for state in ALL_STATES if states is None else states:
            names = self._names[state]
            start = bisect.bisect_right(names, after) if after else 0
            found += names[start : start + size]
        found.sort()
        return [self._records[name] for name in found[:size]]

    def _forget(self, record: KnownSnapshot) -> None:
        self._leave_state(record)
        self.unseen.pop(record.name, None)
        self.expiring.discard(record.name)

    def _leave_state(self, record: KnownSnapshot) -> None:
        names = self._names[record.state]
        del names[bisect.bisect_left(names, record.name)]
        self._bytes[record.state] -= record.entry.allocated_bytes


def _insert(names: list[str], name: str) -> None:
    # A first scan brings names in order more often than not.
    if not names or name > names[-1]:
        names.append(name)
    else:
        bisect.insort(names, name)
