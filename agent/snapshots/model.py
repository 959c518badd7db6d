"""The words of the snapshot cache as types: retentions, what is recorded of a snapshot, its state.

Why this exists: every decision about a snapshot is made from these facts alone, so that it can be read, tested and
printed without a disk, a ledger or a network. Everything here is immutable; a change is a new value that is committed
to the ledger before anybody sees it. Times are wall-clock Unix seconds, sizes are bytes.
"""

import enum
from dataclasses import dataclass, replace

from common.snapshot_words import Owner, RetainReason


class SnapshotState(enum.Enum):
    """What may happen to a snapshot; members stand in order of precedence, and the values are those of the API."""

    PURGING = 1
    PENDING = 2
    IN_USE = 3
    SHARED = 4
    INVALID = 5
    RETAINED = 6
    UNCLAIMED = 7


class DeferredReason(enum.StrEnum):
    """Why something is not decided now; stable for programs."""

    OWNER_SYNC_BEHIND = "OWNER_SYNC_BEHIND"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    CLOCK_IN_DOUBT = "CLOCK_IN_DOUBT"
    COLLECTION_OFF = "COLLECTION_OFF"
    NO_POLICY = "NO_POLICY"


@dataclass(frozen=True, slots=True, order=True)
class SyncPoint:
    """The place of an owner sync in the order of all syncs: by controller epoch, then by revision.

    A person's sync has epoch `PERSON_EPOCH`, before every controller's.
    """

    epoch: int
    revision: int


PERSON_EPOCH = -1


@dataclass(frozen=True, slots=True)
class Retention:
    """The promise to one owner to keep a snapshot although that owner is gone.

    `expires_at` is None when the promise does not end by itself.
    """

    owner: Owner
    reason: RetainReason
    created_at: float
    expires_at: float | None = None
    backup_verified: bool = False

    def expired(self, moment: "Moment") -> bool:
        """Whether it has ended by itself; while the clock is in doubt none has."""
        return self.expires_at is not None and not moment.clock_in_doubt and self.expires_at <= moment.now


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What the ledger records of one snapshot id.

    Attributes:
        owner: The pod last seen to claim it. Namespace and pod name never change once recorded.
        retentions: Promises to keep it, at most one for each pod UID.
        unclaimed_at: When this ledger first saw it unclaimed, without interruption since; None while it is not.
        last_used_at: Last use the cache itself knows of (a claim ended, a copy was verified to be restored); 0: none.
        stamped_in_doubt: Times above were taken from a clock that was in doubt, and start anew once it is confirmed.
        contested: Two pods with the same right to its name claimed it before an owner was recorded, so that nobody can
            tell whose it is.
        guessed: The owner is that of the snapshot whose place it took while nobody claimed the name; no pod has
            claimed this one yet.
    """

    owner: Owner | None = None
    retentions: tuple[Retention, ...] = ()
    unclaimed_at: float | None = None
    last_used_at: float = 0.0
    stamped_in_doubt: bool = False
    contested: bool = False
    guessed: bool = False

    def with_shared_owner(self, name: str) -> "SnapshotFacts":
        """Return the same facts, with one copy in memory of what the snapshot's name and its owners have in common."""
        if self.owner is None:
            return self
        owner = self.owner
        if owner.vm_name == name and owner.vm_name is not name:
            owner = replace(owner, vm_name=name)
        if owner is self.owner and all(kept.owner is owner or kept.owner != owner for kept in self.retentions):
            return self
        retentions = (replace(kept, owner=owner) if kept.owner == owner else kept for kept in self.retentions)
        return replace(self, owner=owner, retentions=tuple(retentions))


NO_FACTS = SnapshotFacts()


@dataclass(frozen=True, slots=True)
class Moment:
    """The time of a decision, as far as it can be trusted: wall-clock Unix seconds, and whether that is in doubt."""

    now: float
    clock_in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Situation:
    """What is the case around one snapshot right now, next to its facts; all that its state depends on.

    `claimed`: an owner of the last sync claims its name. `engine_in_use`: the engine says a VM uses it.
    `vm_owned`: its name is a VM's own. `everything_in_use`: the ledger was rebuilt and no sync has come since.
    """

    vm_owned: bool
    purging: bool = False
    pending: bool = False
    claimed: bool = False
    engine_in_use: bool = False
    invalid: bool = False
    everything_in_use: bool = False


def live_retentions(facts: SnapshotFacts, moment: Moment) -> tuple[Retention, ...]:
    """Return the promises that hold now."""
    return tuple(kept for kept in facts.retentions if not kept.expired(moment))


def strongest(retentions: tuple[Retention, ...]) -> Retention | None:
    """Return the promise to show for a snapshot: the one that lasts longest, the oldest of equals."""
    if not retentions:
        return None
    return max(retentions, key=lambda kept: (kept.expires_at is None, kept.expires_at or 0.0, -kept.created_at))


def state_of(situation: Situation, *, retained: bool) -> SnapshotState:
    """Return the state by the order of precedence; `retained` tells whether a promise holds now."""
    if situation.purging:
        return SnapshotState.PURGING
    if situation.pending:
        return SnapshotState.PENDING
    if situation.claimed or situation.engine_in_use or (situation.everything_in_use and situation.vm_owned):
        return SnapshotState.IN_USE
    if not situation.vm_owned:
        return SnapshotState.SHARED
    if situation.invalid:
        return SnapshotState.INVALID
    return SnapshotState.RETAINED if retained else SnapshotState.UNCLAIMED
