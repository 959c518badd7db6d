"""Whether a purge may remove a snapshot: the one place that says yes.

Why this exists: a removal cannot be taken back. A controller's purge may be late, repeated, or from a picture that is
no longer true, so it reaches only what the agent had already seen when it applied a sync in which nobody claimed the
name. A person's purge names what it wants and needs no sync.
"""

from dataclasses import dataclass

from agent.snapshots.model import DeferredReason, Moment, Situation, SnapshotFacts, SyncPoint, live_retentions
from agent.snapshots.ownership import is_foreign, owns_its_name
from common.snapshot_words import Owner, PurgeOutcome


@dataclass(frozen=True, slots=True)
class SyncKnowledge:
    """The last sync applied since this start, and whether it is recent enough to remove anything on its strength."""

    applied: SyncPoint | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class PurgeOrder:
    """Who asks for what: `point` is the sync a controller refers to, None for a person. `force` is a person's."""

    owner: Owner
    point: SyncPoint | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class PurgeTarget:
    """One snapshot as a purge finds it.

    `seen` and `unclaimed_since` are the first syncs of this start at which it was there, and since when nobody has
    claimed its name without interruption; None means at none yet. `unreadable`: it could not be read.
    """

    name: str
    situation: Situation
    facts: SnapshotFacts
    seen: SyncPoint | None = None
    unclaimed_since: SyncPoint | None = None
    unreadable: bool = False


@dataclass(frozen=True, slots=True)
class PurgeDecision:
    """What to do with one snapshot; `PURGED` means remove it. The message is for a person."""

    outcome: PurgeOutcome
    message: str = ""
    deferred_reason: str = ""

    @property
    def removes(self) -> bool:
        """Whether the snapshot is to be removed."""
        return self.outcome is PurgeOutcome.PURGED


_BEHIND = DeferredReason.OWNER_SYNC_BEHIND.value


def decide_purge(
    order: PurgeOrder,
    target: PurgeTarget,
    knowledge: SyncKnowledge,
    *,
    trusted_prefixes: tuple[str, ...],
    moment: Moment,
) -> PurgeDecision:
    """Decide about one snapshot; the first rule that speaks decides."""
    return (
        _without_complete_picture(order, knowledge)
        or _protected(target)
        or _foreign(order, target, trusted_prefixes)
        or _retained(order, target, moment)
        or _not_seen_by_the_sync(order, target)
        or PurgeDecision(PurgeOutcome.PURGED)
    )


def _without_complete_picture(order: PurgeOrder, knowledge: SyncKnowledge) -> PurgeDecision | None:
    if order.point is None:
        return None
    if knowledge.applied is None:
        return PurgeDecision(PurgeOutcome.DEFERRED, "no owner sync has come since the agent started", _BEHIND)
    if not knowledge.fresh:
        return PurgeDecision(PurgeOutcome.DEFERRED, "the last owner sync is too old", _BEHIND)
    applied = knowledge.applied
    if order.point.epoch != applied.epoch or order.point.revision > applied.revision or order.point.revision <= 0:
        message = f"the purge refers to owner sync {order.point.revision}, the last one applied is {applied.revision}"
        return PurgeDecision(PurgeOutcome.DEFERRED, message, _BEHIND)
    return None


def _protected(target: PurgeTarget) -> PurgeDecision | None:
    situation = target.situation
    if situation.purging:
        return PurgeDecision(PurgeOutcome.NOTHING_TO_PURGE, "its removal has begun already")
    if situation.pending:
        return PurgeDecision(PurgeOutcome.SKIPPED_PENDING, "it is being written")
    if situation.claimed:
        return PurgeDecision(PurgeOutcome.SKIPPED_IN_USE, "a pod of the last owner sync claims it")
    if situation.engine_in_use:
        return PurgeDecision(PurgeOutcome.SKIPPED_IN_USE, "the engine says that a VM uses it")
    if situation.everything_in_use:
        return PurgeDecision(PurgeOutcome.SKIPPED_IN_USE, "the ledger was rebuilt and no owner sync has come since")
    if not situation.vm_owned:
        return PurgeDecision(PurgeOutcome.SKIPPED_FOREIGN, "it is not a VM's own snapshot")
    if target.unreadable:
        unavailable = DeferredReason.STORE_UNAVAILABLE.value
        return PurgeDecision(PurgeOutcome.DEFERRED, "it cannot be read, which is no verdict on it", unavailable)
    return None


def _foreign(order: PurgeOrder, target: PurgeTarget, trusted: tuple[str, ...]) -> PurgeDecision | None:
    recorded, owner = target.facts.owner, order.owner
    names_pod = bool(owner.namespace or owner.pod_name)
    if recorded is not None and names_pod and not recorded.same_pod_name(owner):
        message = f"it is recorded for pod {recorded.namespace}/{recorded.pod_name}"
        return PurgeDecision(PurgeOutcome.SKIPPED_FOREIGN, message)
    if order.point is None:
        return None
    if target.facts.contested:
        return PurgeDecision(PurgeOutcome.SKIPPED_FOREIGN, "two pods claimed its name and nothing tells whose it is")
    if not owns_its_name(owner, trusted):
        return PurgeDecision(PurgeOutcome.SKIPPED_FOREIGN, "the VM name is not the pod's own")
    if is_foreign(recorded or owner, trusted):
        return PurgeDecision(PurgeOutcome.SKIPPED_FOREIGN, "its owner is not managed or has a foreign VM name")
    return None


def _retained(order: PurgeOrder, target: PurgeTarget, moment: Moment) -> PurgeDecision | None:
    promises = live_retentions(target.facts, moment)
    if not promises or (order.force and order.point is None):
        return None
    return PurgeDecision(PurgeOutcome.SKIPPED_RETAINED, f"it is retained: {promises[0].reason.name}")


def _not_seen_by_the_sync(order: PurgeOrder, target: PurgeTarget) -> PurgeDecision | None:
    if order.point is None:
        return None
    if target.seen is None or target.seen > order.point:
        return PurgeDecision(PurgeOutcome.SKIPPED_NEWER, "it appeared after the owner sync the purge refers to")
    if target.unclaimed_since is None or target.unclaimed_since > order.point:
        message = "its name was still claimed in the owner sync the purge refers to"
        return PurgeDecision(PurgeOutcome.DEFERRED, message, _BEHIND)
    return None
