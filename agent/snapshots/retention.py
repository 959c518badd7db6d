"""How a promise to keep a snapshot begins, is kept and ends: one pure decision for each event.

Why this exists: losing a retention loses somebody's sleeping VM. Each function takes what is recorded of a snapshot
and what happened, and returns what has to be recorded from now on, with the reason; the cache commits that before it
answers. A promise is never weakened by a late or repeated call, and keeping wins wherever the order of two events
cannot be told.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from agent.snapshots.errors import (
    SnapshotIdMismatchError,
    SnapshotInvalidError,
    TooManyRequestsError,
    quoted,
)
from agent.snapshots.model import Moment, Retention, Situation, SnapshotFacts, SnapshotState, live_retentions, state_of
from agent.snapshots.ownership import (
    is_contested,
    is_guess_in_doubt,
    owns_its_name,
    recorded_owner,
    replaced_uids,
)
from common.snapshot_words import Owner, RetainOutcome, RetainReason

MAX_RETENTIONS_PER_SNAPSHOT = 16
_UNCLAIMED_STATES = (SnapshotState.UNCLAIMED, SnapshotState.INVALID)


@dataclass(frozen=True, slots=True)
class SyncDecision:
    """What a sync makes of one snapshot: its facts from now on, pods that are superseded, and whether it is now kept.

    `kept_for` are the owners that left with the keep flag; `ended` are the promises that the sync superseded.
    """

    facts: SnapshotFacts
    superseded_uids: frozenset[str] = frozenset()
    kept_for: tuple[Owner, ...] = ()
    ended: tuple[Retention, ...] = ()


def decide_sync(
    facts: SnapshotFacts,
    before: tuple[Owner, ...],
    claimants: tuple[Owner, ...],
    *,
    keepable: bool,
    trusted_prefixes: tuple[str, ...],
    moment: Moment,
) -> SyncDecision:
    """Apply a change of claims to one snapshot.

    `before` and `claimants` are the owners that claimed its name up to now and from now on; a snapshot that has just
    appeared has no `before`. `keepable` is False for what is never retained: pending, invalid, being removed.
    Promises to a pod end when another UID of its namespace and name claims; an owner that is no longer named and
    carried the keep flag leaves a promise behind.
    """
    known = [*before, *(kept.owner for kept in facts.retentions), *((facts.owner,) if facts.owner else ())]
    replaced = replaced_uids(known, claimants)
    claiming = {owner.pod_uid for owner in claimants}
    left = [owner for owner in before if owner.pod_uid not in claiming and owner.pod_uid not in replaced]
    ended = tuple(kept for kept in facts.retentions if kept.owner.pod_uid in replaced)
    retentions = tuple(kept for kept in facts.retentions if kept.owner.pod_uid not in replaced)
    kept_for: tuple[Owner, ...] = ()
    for owner in left:
        # A flag says nothing about a backup; whoever looked for one may have told before this sync.
        backup = any(kept.backup_verified for kept in retentions if kept.owner.pod_uid == owner.pod_uid)
        promise = Retention(owner, RetainReason.SEAT_RELEASE, moment.now, backup_verified=backup)
        promised = _with_promise(retentions, promise)
        if keepable and owner.keep_on_delete and _has_room(promised, owner, trusted_prefixes):
            retentions, kept_for = promised, (*kept_for, owner)
    is_doubtful = is_guess_in_doubt(facts, claimants, trusted_prefixes)
    recorded = None if is_doubtful else facts.owner
    contested = facts.contested or is_doubtful
    return SyncDecision(
        facts=replace(
            facts,
            owner=recorded_owner(recorded, claimants, trusted_prefixes, contested=contested),
            contested=contested or (recorded is None and is_contested(claimants, trusted_prefixes)),
            guessed=facts.guessed and not claimants,
            retentions=retentions,
            last_used_at=moment.now if before and not claimants else facts.last_used_at,
        ),
        superseded_uids=replaced,
        kept_for=kept_for,
        ended=ended,
    )


def settle(facts: SnapshotFacts, situation: Situation, moment: Moment) -> SnapshotFacts:
    """Return the facts with expired promises dropped and the time since when the snapshot is unclaimed kept right.

    The grace period counts from the first sight without interruption; a claim, a promise or a use ends the count.
    Times from a doubtful clock never meet a moment that is believed: they start anew first, however the doubt ended.
    """
    given = facts
    if not moment.clock_in_doubt:
        facts = restamp(facts, moment)
    retentions = live_retentions(facts, moment)
    state = state_of(situation, retained=bool(retentions))
    unclaimed_at = facts.unclaimed_at
    stamped = facts.stamped_in_doubt
    if state not in _UNCLAIMED_STATES:
        unclaimed_at = None
        stamped = stamped and any(kept.expires_at is not None for kept in retentions)
    elif unclaimed_at is None:
        unclaimed_at, stamped = moment.now, stamped or moment.clock_in_doubt
    if (retentions, unclaimed_at, stamped) == (given.retentions, given.unclaimed_at, given.stamped_in_doubt):
        return given
    return replace(facts, retentions=retentions, unclaimed_at=unclaimed_at, stamped_in_doubt=stamped)


def restamp(facts: SnapshotFacts, moment: Moment) -> SnapshotFacts:
    """Return facts whose times came from a doubtful clock, with those times started anew at a confirmed moment."""
    if not facts.stamped_in_doubt:
        return facts
    return replace(
        facts,
        unclaimed_at=None if facts.unclaimed_at is None else moment.now,
        retentions=tuple(_restarted(kept, moment.now) for kept in facts.retentions),
        stamped_in_doubt=False,
    )


@dataclass(frozen=True, slots=True)
class RetainTarget:
    """One of the snapshots a VM owns, as a retain finds it. `present` is False for one that is pending or going."""

    name: str
    snapshot_id: str
    facts: SnapshotFacts
    present: bool = True
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class RetainRequest:
    """A promise somebody asks for; `ttl_seconds` None means until it is released."""

    owner: Owner
    reason: RetainReason
    ttl_seconds: float | None = None
    expected_snapshot_id: str = ""
    backup_verified: bool = False


@dataclass(frozen=True, slots=True)
class RetainDecision:
    """What a retain did, and the facts to record for each name it keeps."""

    outcome: RetainOutcome
    facts: dict[str, SnapshotFacts]


def decide_retain(
    request: RetainRequest,
    targets: Sequence[RetainTarget],
    superseded_uids: Collection[str],
    moment: Moment,
    trusted_prefixes: tuple[str, ...] = (),
) -> RetainDecision:
    """Decide a retain for the snapshots of the owner's VM, the hibernate image being the one with the VM's own name.

    Raises SnapshotIdMismatchError when the hibernate image is not the expected one, SnapshotInvalidError when what is
    to be kept is no snapshot, TooManyRequestsError when too many owners keep it already and this one has no right to
    the name.
    """
    present = [target for target in targets if target.present]
    if not present:
        return RetainDecision(RetainOutcome.NOTHING_TO_RETAIN, {})
    if request.owner.pod_uid and request.owner.pod_uid in superseded_uids:
        return RetainDecision(RetainOutcome.SUPERSEDED, {})
    hibernate = next((target for target in present if target.name == request.owner.vm_name), None)
    found_id = hibernate.snapshot_id if hibernate else ""
    if request.expected_snapshot_id and found_id != request.expected_snapshot_id:
        raise SnapshotIdMismatchError(
            f"snapshot {quoted(request.owner.vm_name)} has id {quoted(found_id)},"
            f" not the expected {quoted(request.expected_snapshot_id)}; nothing was recorded"
        )
    usable = [target for target in present if not target.invalid]
    if not usable or (hibernate is not None and hibernate.invalid):
        raise SnapshotInvalidError(
            f"snapshot {quoted((hibernate or present[0]).name)} is damaged and cannot be kept;"
            " see its problems, and restore from the registry"
        )
    return RetainDecision(
        RetainOutcome.RETAINED,
        {target.name: _retained(target.facts, request, moment, trusted_prefixes) for target in usable},
    )


def decide_release(facts: SnapshotFacts, *, pod_uid: str) -> SnapshotFacts:
    """Return the facts without the promise to one pod, or without any when no UID is given (a person's call)."""
    kept = tuple(one for one in facts.retentions if pod_uid and one.owner.pod_uid != pod_uid)
    return facts if kept == facts.retentions else replace(facts, retentions=kept)


def _retained(
    facts: SnapshotFacts, request: RetainRequest, moment: Moment, trusted_prefixes: tuple[str, ...]
) -> SnapshotFacts:
    expires_at = None if request.ttl_seconds is None else moment.now + request.ttl_seconds
    promise = Retention(request.owner, request.reason, moment.now, expires_at, request.backup_verified)
    retentions = _with_promise(live_retentions(facts, moment), promise)
    if not _has_room(retentions, request.owner, trusted_prefixes):
        raise TooManyRequestsError(
            f"{len(facts.retentions)} owners keep this snapshot of {quoted(request.owner.vm_name)} already;"
            " release one of them first"
        )
    stamped = facts.stamped_in_doubt or (moment.clock_in_doubt and expires_at is not None)
    return replace(facts, retentions=retentions, stamped_in_doubt=stamped)


def _has_room(retentions: tuple[Retention, ...], owner: Owner, trusted_prefixes: tuple[str, ...]) -> bool:
    """Whether an owner's promise may stand among these.

    Whoever may create pods can have any number of them claim a name that is not theirs; what they have kept neither
    grows without end nor stands in the way of the pod whose name it is.
    """
    return len(retentions) <= MAX_RETENTIONS_PER_SNAPSHOT or owns_its_name(owner, trusted_prefixes)


def _with_promise(retentions: tuple[Retention, ...], promise: Retention) -> tuple[Retention, ...]:
    """Add a promise, or strengthen the one the same pod has: it never ends earlier than was promised before.

    Whether a backup was seen is what was said last: one that was deleted since protects nothing.
    """
    before = next((kept for kept in retentions if kept.owner.pod_uid == promise.owner.pod_uid), None)
    if before is None:
        return (*retentions, promise)
    lasting = [kept for kept in (promise, before) if kept.expires_at is None]
    longest = lasting[0] if lasting else max(promise, before, key=lambda kept: kept.expires_at or 0.0)
    merged = replace(
        promise,
        reason=longest.reason,
        created_at=before.created_at,
        expires_at=longest.expires_at,
    )
    return tuple(merged if kept is before else kept for kept in retentions)


def _restarted(kept: Retention, now: float) -> Retention:
    if kept.expires_at is None:
        return kept
    return replace(kept, created_at=now, expires_at=now + max(0.0, kept.expires_at - kept.created_at))
