"""What a collection would remove, in which order and why: a pure plan that a dry run prints and a real run executes.

Why this exists: a cache without a bound fills the disk, and a bound without a plan removes the wrong thing. The plan
names every item with the bytes its removal really gives back, so that what people are shown, what is done and what is
tested are one and the same list. Nothing is ever planned without a policy or pressure.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.snapshots.model import Moment, Retention, SnapshotState
from common.snapshot_words import RetainReason

GRACE_SECONDS = 24 * 3600.0
# A store does not tell how many inodes a snapshot occupies: four files and their directory are what one usually has.
NOMINAL_INODES_PER_SNAPSHOT = 5


class CollectionReason(enum.Enum):
    """Why a snapshot is in a plan; values are those of the API. Of several, the first is named."""

    MAX_AGE = 1
    MAX_BYTES = 2
    KEEP_AT_MOST = 3
    WATERMARK = 4


class CollectionRank(enum.IntEnum):
    """The order in which snapshots go."""

    UNCLAIMED = 0
    BACKED_UP = 1
    RETAINED = 2
    DISRUPTED = 3


class SharedFile(Protocol):
    """A file with several hard links, of which `links_here` belong to one snapshot."""

    @property
    def device(self) -> int: ...
    @property
    def inode(self) -> int: ...
    @property
    def link_count(self) -> int: ...
    @property
    def links_here(self) -> int: ...
    @property
    def allocated_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot whose owner is gone, as a plan sees it.

    `retentions` are those that hold now. `foreign`: its owner is unmanaged or its VM name is not its own;
    `restoring`: somebody has just verified it and is about to restore it. Such ones and one that is `unreadable` are
    never in a plan. `exclusive_bytes` come back with it whatever else goes.
    """

    name: str
    state: SnapshotState
    exclusive_bytes: int
    last_use_at: float
    unclaimed_at: float | None = None
    retentions: tuple[Retention, ...] = ()
    shared_files: Sequence[SharedFile] = ()
    foreign: bool = False
    unreadable: bool = False
    restoring: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What bounds the cache; None means no such criterion. The criteria unite in what they evict."""

    max_age_seconds: float | None = None
    max_bytes: int | None = None
    keep_at_most: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.max_age_seconds, self.max_bytes, self.keep_at_most))


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Use of the file system in percent: collection starts above `high` and stops below `low`.

    `reclaimable`: retained bytes with a verified backup are sold as available, so collection starts above `low`
    already, and up to `high` takes only what was sold.
    """

    high_percent: int = 85
    low_percent: int = 80
    reclaimable: bool = False


@dataclass(frozen=True, slots=True)
class DiskUse:
    """How full the store's file system is; `trash_bytes` will come back without anybody's doing."""

    total_bytes: int
    available_bytes: int
    trash_bytes: int = 0
    total_inodes: int = 0
    available_inodes: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use once the trash is empty."""
        return max(0, self.total_bytes - self.available_bytes - self.trash_bytes)

    @property
    def used_inodes(self) -> int:
        """Inodes in use; 0 while the trash holds some of them, because nobody knows how many."""
        return 0 if self.trash_bytes else max(0, self.total_inodes - self.available_inodes)


@dataclass(frozen=True, slots=True)
class Pressure:
    """What has to come back, and the last rank that may go for it."""

    bytes_needed: int = 0
    inodes_needed: int = 0
    last_rank: CollectionRank = CollectionRank.DISRUPTED

    def __bool__(self) -> bool:
        return self.bytes_needed > 0 or self.inodes_needed > 0


NO_PRESSURE = Pressure()


@dataclass(frozen=True, slots=True)
class PlannedRemoval:
    """One item of a plan. `bytes` is what its removal gives back when all items before it are gone."""

    name: str
    bytes: int
    last_use_at: float
    reason: CollectionReason


def above(used: int, total: int, percent: int) -> bool:
    """Whether a use is above a watermark; never of something that does not exist."""
    return total > 0 and used * 100 > percent * total


def above_high(use: DiskUse, watermarks: Watermarks) -> bool:
    """Whether bytes or inodes are above the high watermark."""
    high = watermarks.high_percent
    return above(use.used_bytes, use.total_bytes, high) or above(use.used_inodes, use.total_inodes, high)


def pressure_of(use: DiskUse, watermarks: Watermarks) -> Pressure:
    """Return what has to come back so that the use is below the low watermark; nothing while it need not start."""
    urgent = above_high(use, watermarks)
    sold = watermarks.reclaimable and above(use.used_bytes, use.total_bytes, watermarks.low_percent)
    if not urgent and not sold:
        return NO_PRESSURE
    return Pressure(
        bytes_needed=_excess(use.used_bytes, use.total_bytes, watermarks.low_percent),
        inodes_needed=_excess(use.used_inodes, use.total_inodes, watermarks.low_percent),
        last_rank=CollectionRank.DISRUPTED if urgent else CollectionRank.BACKED_UP,
    )


def rank_of(candidate: Candidate) -> CollectionRank:
    """Return when a candidate's turn comes: the promise that holds it longest decides."""
    if candidate.state is not SnapshotState.RETAINED:
        return CollectionRank.UNCLAIMED
    if any(kept.reason is RetainReason.DISRUPTION for kept in candidate.retentions):
        return CollectionRank.DISRUPTED
    if all(kept.backup_verified for kept in candidate.retentions):
        return CollectionRank.BACKED_UP
    return CollectionRank.RETAINED


def is_collectable(candidate: Candidate, moment: Moment, grace_seconds: float = GRACE_SECONDS) -> bool:
    """Whether a plan may name it at all. While the clock is in doubt no grace period ends."""
    if candidate.foreign or candidate.unreadable or candidate.restoring:
        return False
    if candidate.state is SnapshotState.RETAINED:
        return True
    if candidate.state not in (SnapshotState.UNCLAIMED, SnapshotState.INVALID) or candidate.unclaimed_at is None:
        return False
    return not moment.clock_in_doubt and moment.now - candidate.unclaimed_at >= grace_seconds


def plan_collection(
    candidates: Iterable[Candidate],
    policy: Policy,
    pressure: Pressure,
    moment: Moment,
    *,
    grace_seconds: float = GRACE_SECONDS,
) -> tuple[PlannedRemoval, ...]:
    """Return what goes, in the order in which it goes. Every criterion is applied to the same list, then united."""
    ordered = sorted(
        (one for one in candidates if is_collectable(one, moment, grace_seconds)),
        key=lambda one: (rank_of(one), one.last_use_at, one.name),
    )
    reasons: dict[str, CollectionReason] = {}
    for reason, names in (
        (CollectionReason.MAX_AGE, _too_old(ordered, policy.max_age_seconds, moment)),
        (CollectionReason.MAX_BYTES, _too_large(ordered, policy.max_bytes)),
        (CollectionReason.KEEP_AT_MOST, _too_many(ordered, policy.keep_at_most)),
    ):
        for name in names:
            reasons.setdefault(name, reason)
    for name in _under_pressure(ordered, reasons.keys(), pressure):
        reasons[name] = CollectionReason.WATERMARK
    links = _Links()
    return tuple(
        PlannedRemoval(one.name, links.remove(one), one.last_use_at, reasons[one.name])
        for one in ordered
        if one.name in reasons
    )


class _Links:
    """Counts what removals give back: a hard-linked file only with its last link, wherever the others are."""

    def __init__(self) -> None:
        self._left: dict[tuple[int, int], int] = {}

    def remove(self, candidate: Candidate) -> int:
        freed = candidate.exclusive_bytes
        for file in candidate.shared_files:
            key = (file.device, file.inode)
            left = self._left.get(key, file.link_count) - file.links_here
            self._left[key] = left
            if left <= 0:
                freed += file.allocated_bytes
        return freed


def _excess(used: int, total: int, low_percent: int) -> int:
    below_low = -(-low_percent * total // 100) - 1
    return max(0, used - max(0, below_low)) if total else 0


def _too_old(ordered: Sequence[Candidate], max_age_seconds: float | None, moment: Moment) -> Iterable[str]:
    if max_age_seconds is None or moment.clock_in_doubt:
        return ()
    return (one.name for one in ordered if moment.now - one.last_use_at > max_age_seconds)


def _too_large(ordered: Sequence[Candidate], max_bytes: int | None) -> Iterable[str]:
    if max_bytes is None:
        return
    everything, links = _Links(), _Links()
    left = sum(everything.remove(one) for one in ordered)
    for one in ordered:
        if left <= max_bytes:
            return
        left -= links.remove(one)
        yield one.name


def _too_many(ordered: Sequence[Candidate], keep_at_most: int | None) -> Iterable[str]:
    if keep_at_most is None:
        return ()
    return (one.name for one in ordered[: max(0, len(ordered) - keep_at_most)])


def _under_pressure(ordered: Sequence[Candidate], doomed: Iterable[str], pressure: Pressure) -> list[str]:
    """Return what has to go besides the doomed ones, whose space counts first."""
    if not pressure:
        return []
    already = frozenset(doomed)
    links = _Links()
    bytes_left, inodes_left = pressure.bytes_needed, pressure.inodes_needed
    for one in ordered:
        if one.name in already:
            bytes_left -= links.remove(one)
            inodes_left -= NOMINAL_INODES_PER_SNAPSHOT
    chosen = []
    for one in ordered:
        if bytes_left <= 0 and inodes_left <= 0:
            break
        if one.name in already or rank_of(one) > pressure.last_rank:
            continue
        chosen.append(one.name)
        bytes_left -= links.remove(one)
        inodes_left -= NOMINAL_INODES_PER_SNAPSHOT
    return chosen
