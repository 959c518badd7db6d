"""An agent's snapshot cache in memory: the real decisions of `agent.snapshots` over a dict instead of a disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent.snapshots.authority import Authority, Caller, admit, order_sync
from agent.snapshots.model import NO_FACTS, Moment, Situation, SnapshotFacts, SyncPoint, live_retentions, strongest
from agent.snapshots.names import owned_names, owning_vm
from agent.snapshots.ownership import OwnerSet
from agent.snapshots.purging import PurgeOrder, PurgeTarget, SyncKnowledge, decide_purge
from agent.snapshots.retention import RetainRequest, RetainTarget, decide_release, decide_retain, decide_sync, settle
from common.snapshot_words import Owner, PurgeOutcome, RetainOutcome, RetainReason
from controller.deletion.model import FoundSnapshot, PurgeResult


@dataclass
class SimSnapshot:
    """One snapshot: `writer` is the UID of the pod whose VM it is, which the agent itself does not know."""

    name: str
    snapshot_id: str
    writer: str
    facts: SnapshotFacts = NO_FACTS
    seen: SyncPoint | None = None
    unclaimed_since: SyncPoint | None = None


class SimAgent:
    """One node's cache. `on_purge` hears of each snapshot right before it is removed.

    `syncs` counts those applied; without `answers` it is silent.
    """

    def __init__(self, node: str, wall: Callable[[], float], on_purge: Callable[[str, SimSnapshot], None]) -> None:
        self.node = node
        self.snapshots: dict[str, SimSnapshot] = {}
        self.known_uids: set[str] = set()
        self._wall = wall
        self._on_purge = on_purge
        self._authority = Authority()
        self._owners = OwnerSet()
        self._superseded: set[str] = set()
        self._applied: SyncPoint | None = None
        self._written = 0
        self.syncs = 0
        self.answers = True

    def write(self, vm_name: str, writer: str) -> None:
        """A runtime writes a VM's hibernate image, in place of the one before."""
        self._written += 1
        self.snapshots[vm_name] = SimSnapshot(vm_name, f"{self.node}-{self._written}", writer)

    def restart(self) -> None:
        """The process starts again: promises and owners stay, what it saw does not."""
        self._applied = None
        for snapshot in self.snapshots.values():
            snapshot.seen = snapshot.unclaimed_since = None

    def sync(self, owners: Sequence[Owner], revision: int, caller: Caller) -> tuple[FoundSnapshot, ...]:
        """Apply a sync."""
        authority = admit(self._authority, caller)
        point = order_sync(authority, caller, revision)
        self.syncs += 1
        after, moment = OwnerSet(owner for owner in owners), self._moment()
        for name, snapshot in self.snapshots.items():
            decision = decide_sync(
                snapshot.facts,
                self._owners.claimants(name),
                after.claimants(name),
                keepable=True,
                trusted_prefixes=(),
                moment=moment,
            )
            claimed = bool(after.claimants(name))
            snapshot.facts = settle(decision.facts, _situation(name, claimed=claimed), moment)
            self._superseded |= decision.superseded_uids
            snapshot.seen = snapshot.seen or point
            snapshot.unclaimed_since = None if claimed else snapshot.unclaimed_since or point
        pods = {(owner.namespace, owner.pod_name): owner.pod_uid for owner in after}
        self._superseded |= {
            owner.pod_uid
            for owner in self._owners
            if pods.get((owner.namespace, owner.pod_name), owner.pod_uid) != owner.pod_uid
        }
        self._superseded -= after.by_uid.keys()
        self._authority = Authority(authority.cluster_id, authority.epoch, point)
        self._owners, self._applied = after, point
        self.known_uids |= after.by_uid.keys()
        return tuple(self._found(each) for each in self.snapshots.values() if not after.claimants(each.name))

    def retain(
        self, owner: Owner, reason: RetainReason, ttl_seconds: float | None, caller: Caller
    ) -> tuple[RetainOutcome, int]:
        """Keep an owner's snapshots."""
        self._authority = admit(self._authority, caller, keeping=True)
        targets = [
            RetainTarget(name, self.snapshots[name].snapshot_id, self.snapshots[name].facts)
            for name in owned_names(owner.vm_name)
            if name in self.snapshots
        ]
        request = RetainRequest(owner, reason, ttl_seconds)
        decision = decide_retain(request, targets, self._superseded, self._moment())
        for name, facts in decision.facts.items():
            self.snapshots[name].facts = facts
        kept = len(decision.facts) if decision.outcome is RetainOutcome.RETAINED else 0
        return decision.outcome, kept

    def release(self, owner: Owner, caller: Caller) -> int:
        """End an owner's promises."""
        self._authority = admit(self._authority, caller)
        count = 0
        for name in owned_names(owner.vm_name):
            snapshot = self.snapshots.get(name)
            if snapshot is not None:
                facts = decide_release(snapshot.facts, pod_uid=owner.pod_uid)
                count += facts is not snapshot.facts
                snapshot.facts = facts
        return count

    def purge(self, owner: Owner, revision: int, caller: Caller) -> tuple[PurgeResult, ...]:
        """Remove what the rules allow."""
        self._authority = admit(self._authority, caller)
        order = PurgeOrder(owner, SyncPoint(caller.epoch or 0, revision))
        knowledge = SyncKnowledge(self._applied, fresh=self._applied is not None)
        results = []
        for name in owned_names(owner.vm_name):
            snapshot = self.snapshots.get(name)
            if snapshot is None:
                continue
            situation = _situation(name, claimed=bool(self._owners.claimants(name)))
            target = PurgeTarget(name, situation, snapshot.facts, snapshot.seen, snapshot.unclaimed_since)
            decision = decide_purge(order, target, knowledge, trusted_prefixes=(), moment=self._moment())
            if decision.removes:
                self._on_purge(self.node, snapshot)
                del self.snapshots[name]
            results.append(PurgeResult(name, decision.outcome, 0, decision.deferred_reason, decision.message))
        return tuple(results) or (PurgeResult("", PurgeOutcome.NOTHING_TO_PURGE),)

    def retained(self, name: str) -> bool:
        """Whether a promise holds for this snapshot."""
        return bool(live_retentions(self.snapshots[name].facts, self._moment()))

    def reason(self, name: str) -> RetainReason | None:
        """Why a snapshot is kept, None when no promise holds for it."""
        kept = strongest(live_retentions(self.snapshots[name].facts, self._moment()))
        return kept.reason if kept is not None else None

    def _found(self, snapshot: SimSnapshot) -> FoundSnapshot:
        kept = strongest(live_retentions(snapshot.facts, self._moment()))
        owner = kept.owner if kept is not None else snapshot.facts.owner
        return FoundSnapshot(
            name=snapshot.name,
            vm_name=owning_vm(snapshot.name),
            owner=owner,
            retained=kept.reason if kept is not None else None,
            expires_at=kept.expires_at if kept is not None else None,
        )

    def _moment(self) -> Moment:
        return Moment(self._wall())


def _situation(name: str, *, claimed: bool) -> Situation:
    return Situation(vm_owned=bool(owning_vm(name)), claimed=claimed)
