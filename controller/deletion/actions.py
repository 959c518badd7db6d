"""Carries out decisions on agents, and says what became of them: in the log, as Events, in numbers.

Why this exists: deciding must not know how things are done. What is done here is the smallest part that can fail, and
whatever fails is decided anew by the caller; nothing is repeated here.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from common.logging import fields
from common.snapshot_words import Owner, PurgeOutcome, PurgeReason, ReleaseReason, RetainOutcome, RetainReason
from controller.agents.cache_client import AgentCallError
from controller.deletion.metrics import ANSWERS, DECISIONS
from controller.deletion.model import Action, Decision, FoundSnapshot, NamesakeFacts, PurgeResult
from controller.deletion.subjects import Subject
from controller.deletion.words import is_held
from controller.kube.events import EventRecorder, EventType, Regarding

log = logging.getLogger(__name__)

_DAMAGED = "SNAPSHOT_INVALID"


class SnapshotCalls(Protocol):
    """What agents are asked; `controller.agents.cache_client.CacheClient` is one."""

    async def sync_owners(self, node: str, owners: Sequence[Owner], revision: int) -> tuple[FoundSnapshot, ...]:
        """Tell the full set of owners."""
        ...

    async def list_unclaimed(self, node: str) -> tuple[FoundSnapshot, ...]:
        """Read what nobody claims."""
        ...

    async def retain(
        self,
        node: str,
        owner: Owner,
        reason: RetainReason,
        ttl_seconds: float | None,
        *,
        backup_verified: bool = False,
    ) -> tuple[RetainOutcome, int]:
        """Keep an owner's snapshots."""
        ...

    async def release(self, node: str, owner: Owner, reason: ReleaseReason) -> int:
        """End an owner's retentions."""
        ...

    async def purge(self, node: str, owner: Owner, reason: PurgeReason, revision: int) -> tuple[PurgeResult, ...]:
        """Remove an owner's snapshots."""
        ...


class Backups(Protocol):
    """Who knows about copies of snapshots beyond the host."""

    async def seen(self, vm_name: str) -> bool:
        """Whether a copy of the VM's hibernate snapshot is seen now; False also when nobody can say. Never raises."""
        ...

    async def still(self, vm_name: str, said: bool) -> bool:
        """The same, `said` being what an agent was told last; asked anew only now and then. Never raises."""
        ...


class Result(Enum):
    """What became of an action. AGAIN: decide anew after the next sync; HELD: decide anew soon."""

    DONE = "done"
    NOTHING_THERE = "nothing there"
    AGAIN = "again after the next sync"
    HELD = "held"


# What is decided anew after the next sync; everything else is an end.
_AGAIN = frozenset(
    {
        PurgeOutcome.DEFERRED,
        PurgeOutcome.SKIPPED_NEWER,
        PurgeOutcome.SKIPPED_PENDING,
        PurgeOutcome.SKIPPED_IN_USE,
    }
)


@dataclass(frozen=True, slots=True)
class Order:
    """One decision to carry out. `revision` is that of the sync in which nobody claims the name."""

    node: str
    owner: Owner
    decision: Decision
    revision: int

    @property
    def reason(self) -> str:
        """The word for this action's reason, for numbers and people."""
        decision = self.decision
        for word in (decision.purge, decision.release, decision.retain):
            if word is not None:
                return word.name
        return ""


class Actions:
    """Does what decisions say. Errors of calls are the caller's to take; they leave nothing half told."""

    def __init__(
        self,
        calls: SnapshotCalls,
        read_pod: Callable[[Owner], Awaitable[NamesakeFacts]],
        events: EventRecorder | None = None,
        *,
        audit_only: bool = False,
        backups: Backups | None = None,
    ) -> None:
        """With `audit_only` decisions are told and nothing is sent. Without `backups` none is ever seen."""
        self._backups = backups
        self._calls = calls
        self._read_pod = read_pod
        self._events = events
        self._audit_only = audit_only

    async def carry_out(self, order: Order) -> Result:
        """Do it. Raises AgentCallError, NotLeadingError, KubeError."""
        decision = order.decision
        if decision.action is Action.RETAIN and not self._audit_only:
            try:
                return await self._retain(order)
            finally:
                # Somebody waits for the promise; what was decided can be told after it.
                self._tell(order)
        self._tell(order)
        if self._audit_only:
            self.say(order, "Normal", "SnapshotDecisionAudited", f"would {decision.action.name.lower()}")
            return Result.DONE
        if decision.release is not None:
            await self._release(order, decision.release)
        return Result.DONE if decision.purge is None else await self._purge(order, decision.purge)

    def _tell(self, order: Order) -> None:
        """Log and count what was decided."""
        decision = order.decision
        DECISIONS.labels(str(decision.row), decision.action.name, order.reason).inc()
        log.info(
            "decided",
            extra=fields(
                node=order.node,
                pod=f"{order.owner.namespace}/{order.owner.pod_name}",
                uid=order.owner.pod_uid,
                vm=order.owner.vm_name,
                row=decision.row,
                action=decision.action.name,
                reason=order.reason,
                why=decision.why,
                audit_only=self._audit_only,
            ),
        )

    async def _retain(self, order: Order) -> Result:
        reason = order.decision.retain
        if reason is None:
            raise ValueError("a decision to retain without a reason")
        has_backup = self._backups is not None and await self._backups.seen(order.owner.vm_name)
        try:
            outcome, count = await self._calls.retain(
                order.node, order.owner, reason, order.decision.ttl_seconds, backup_verified=has_backup
            )
        except AgentCallError as error:
            self.say(order, "Warning", "RetainFailed", f"{error.reason}: {error}")
            if error.reason != _DAMAGED:
                raise
            # Trying again cannot mend it; the copy in the registry is what is left.
            ANSWERS.labels("retain", _DAMAGED).inc()
            return Result.DONE
        ANSWERS.labels("retain", outcome.name).inc()
        if outcome is RetainOutcome.NOTHING_TO_RETAIN:
            return Result.NOTHING_THERE
        if outcome is RetainOutcome.RETAINED:
            self.say(order, "Normal", "SnapshotRetained", f"{count} kept")
        return Result.DONE

    async def _release(self, order: Order, reason: ReleaseReason) -> None:
        count = await self._calls.release(order.node, order.owner, reason)
        ANSWERS.labels("release", "RELEASED" if count else "NOTHING_TO_RELEASE").inc()
        if count:
            self.say(order, "Normal", "SnapshotReleased", f"{count} no longer kept")

    async def _purge(self, order: Order, reason: PurgeReason) -> Result:
        if order.decision.release is not None and is_held(order.node, await self._read_pod(order.owner)):
            # A pod of that name appeared while the promise was being ended.
            return Result.HELD
        results = await self._calls.purge(order.node, order.owner, reason, order.revision)
        for result in results:
            ANSWERS.labels("purge", result.outcome.name).inc()
        purged = [result for result in results if result.outcome is PurgeOutcome.PURGED]
        if purged:
            names = ", ".join(result.name for result in purged)
            size = sum(result.allocated_bytes for result in purged)
            self.say(order, "Normal", "SnapshotPurged", f"{names} ({size} bytes)")
        held = [result for result in results if result.outcome in _AGAIN]
        if held:
            first = held[0]
            what = f"{first.name} {first.deferred_reason or first.outcome.name}: {first.message}"
            self.say(order, "Warning", "SnapshotPurgeDeferred", what)
            return Result.AGAIN
        skipped = [result for result in results if result.outcome not in (PurgeOutcome.PURGED, *_NOTHING)]
        for result in skipped:
            self.say(order, "Warning", "SnapshotPurgeSkipped", f"{result.name} {result.outcome.name}: {result.message}")
        return Result.DONE if purged or skipped else Result.NOTHING_THERE

    async def refresh_backup(self, node: str, subject: Subject) -> None:
        """Tell an agent whether the copies it keeps have a backup, when that is not what it was told. Never raises."""
        if self._backups is None or self._audit_only or subject.retention is None:
            return
        kept = [each for each in subject.snapshots if each.retained is not None]
        said = bool(kept) and all(each.backup_verified for each in kept)
        if subject.retention.reason is RetainReason.REQUESTED or not kept:
            return
        has_backup = await self._backups.still(subject.owner.vm_name, said)
        if has_backup is said:
            return
        reason, ends = subject.retention.reason, subject.retention.expires_in_seconds
        try:
            await self._calls.retain(node, subject.owner, reason, ends, backup_verified=has_backup)
        except AgentCallError as error:
            log.info("a backup could not be told", extra=fields(node=node, vm=subject.owner.vm_name, error=str(error)))

    def say(self, order: Order, event_type: EventType, reason: str, what: str) -> None:
        """Send an Event about the pod; about the Node too when the pod's deletion was not seen or it is a warning."""
        if self._events is None:
            return
        owner, decision = order.owner, order.decision
        note = f"{what} on node {order.node}, VM {owner.vm_name}: {decision.why} (row {decision.row})"
        pod = Regarding("Pod", owner.pod_name, owner.pod_uid, owner.namespace)
        self._events.emit(pod, event_type, reason, note)
        if event_type == "Warning" or decision.unseen:
            self._events.emit(Regarding("Node", order.node), event_type, reason, note)

    def say_node(self, node: str, event_type: EventType, reason: str, note: str) -> None:
        """Send an Event about a Node."""
        if self._events is not None:
            self._events.emit(Regarding("Node", node), event_type, reason, note)


_NOTHING = (PurgeOutcome.NOTHING_TO_PURGE,)
