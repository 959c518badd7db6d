"""One owner's snapshots on one node: asked, read uncached where the table wants it, decided, carried out.

Why this exists: between a decision and its action lie reads and the brake, and their order is what makes a purge safe.
It is the same for a deletion that was seen and for a copy that is found years later.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from common.snapshot_words import Owner
from controller.deletion.actions import Actions, Order, Result
from controller.deletion.brake import Brake
from controller.deletion.brake_record import BrakeRecord
from controller.deletion.decide import decide
from controller.deletion.model import NAMESAKE_UNREAD, Action, Decision, NamesakeFacts, Question, SetFacts
from controller.deletion.pods import PodRecord
from controller.deletion.subjects import Subject

_LOOK_AGAIN_SECONDS = 5.0
# A pod that is not bound yet may take hours.
_HELD_SECONDS = 30.0
_BRAKE_POLL_SECONDS = 60.0


class PodSource(Protocol):
    """The pods, as `PodWatch` has them."""

    @property
    def has_synced(self) -> bool:
        """Whether the copy is whole."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the copy is whole and list and watch work."""
        ...

    def on_node(self, node: str) -> Iterable[PodRecord]:
        """Return the pods bound to a node; do not keep it across an await."""
        ...

    def claimants(self, vm_name: str) -> Iterator[PodRecord]:
        """Yield every bound pod that claims this VM."""
        ...

    async def read(self, owner: Owner) -> NamesakeFacts:
        """Read the pod of the owner's namespace and name uncached."""
        ...


class SetSource(Protocol):
    """The sets, as `SetWatch` has them."""

    def cached(self, owner: Owner) -> SetFacts:
        """Return what our copy says."""
        ...

    async def read(self, owner: Owner) -> SetFacts:
        """Read the owner's set uncached."""
        ...


class Outcome(Enum):
    """How far a subject has come."""

    SETTLED = "settled"
    NOTHING_THERE = "settled, and there was nothing to act on"
    LATER = "to be decided again in a while"
    RESYNC = "to be decided again after the next sync"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The last decision about a subject, and when to decide again if it is not settled."""

    outcome: Outcome
    decision: Decision
    again_seconds: float = _LOOK_AGAIN_SECONDS


class Settler:
    """Settles subjects; several may be settled at once."""

    def __init__(
        self,
        pods: PodSource,
        sets: SetSource,
        actions: Actions,
        brake: Brake,
        clock: Callable[[], float],
        trusted_prefixes: tuple[str, ...] = (),
        record: BrakeRecord | None = None,
    ) -> None:
        """`clock` gives monotonic seconds; without a `record` the brake's count ends with this process."""
        self._pods = pods
        self._sets = sets
        self._actions = actions
        self._brake = brake
        self._clock = clock
        self._trusted_prefixes = trusted_prefixes
        self._record = record

    async def promise(self, node: str, subject: Subject) -> Settlement | None:
        """Keep what our copies alone say is to be kept; None, and nothing done, when they say anything else.

        Raises AgentCallError and NotLeadingError; then nothing is known to be done.
        """
        decision = decide(self._question(node, subject))
        if decision.action is not Action.RETAIN:
            return None
        return Settlement(_OUTCOMES[await self._actions.carry_out(Order(node, subject.owner, decision, 0))], decision)

    async def consider(self, node: str, subject: Subject) -> Decision:
        """Decide with the reads a decision wants, and do nothing. Raises KubeError."""
        question = self._question(node, subject)
        decision = decide(question)
        return decide(await self._confirmed(question)) if decision.action is Action.CONFIRM else decision

    async def settle(self, node: str, subject: Subject, revision: int, others: Sequence[Subject] = ()) -> Settlement:
        """Decide and act; a purge has to be right for the `others` too, which it would reach as well.

        Raises KubeError, AgentCallError and NotLeadingError; then nothing is known to be done.
        """
        decision = await self.consider(node, subject)
        if decision.purge is not None and others:
            for other in others:
                if (kept := await self.consider(node, other)).purge is None:
                    return _left_for(other, kept)
            decision = await self.consider(node, subject)
        if decision.action in (Action.WAIT, Action.CONFIRM):
            pause = _LOOK_AGAIN_SECONDS if decision.row == 1 else _HELD_SECONDS
            return Settlement(Outcome.LATER, decision, pause)
        if decision.action is Action.NOTHING:
            await self._actions.refresh_backup(node, subject)
            return Settlement(Outcome.SETTLED, decision)
        order = Order(node, subject.owner, decision, revision)
        name = f"{node} {subject.owner.pod_uid}"
        if decision.purge is not None and decision.unseen and not self._brake.take(name, self._clock()):
            self._actions.say(order, "Warning", "SnapshotPurgeBraked", "waits: too many purges of unseen deletions")
            wait = max(1.0, min(_BRAKE_POLL_SECONDS, self._brake.seconds_until_free(self._clock())))
            return Settlement(Outcome.LATER, decision, wait)
        if self._record is not None and decision.unseen and await self._record.cover():
            # The reads are to stand right before the attempt.
            decision = await self.consider(node, subject)
            if decision.purge is None:
                return Settlement(Outcome.LATER, decision)
            order = replace(order, decision=decision)
        return Settlement(_OUTCOMES[await self._actions.carry_out(order)], decision)

    def _question(self, node: str, subject: Subject) -> Question:
        owner = subject.owner
        return Question(
            node=node,
            owner=owner,
            pods_synced=self._pods.has_synced,
            pods_current=self._pods.is_current,
            claimants=tuple(record.live() for record in self._pods.claimants(owner.vm_name)),
            namesake=NAMESAKE_UNREAD,
            cocoon_set=self._sets.cached(owner),
            retention=subject.retention,
            seen=subject.seen,
            trusted_prefixes=self._trusted_prefixes,
        )

    async def _confirmed(self, question: Question) -> Question:
        """Read set and pod uncached, the pod last: its read stands right before the attempt."""
        facts = await self._sets.read(question.owner)
        namesake = await self._pods.read(question.owner)
        return replace(question, cocoon_set=facts, namesake=namesake, pods_current=self._pods.is_current)


def _left_for(other: Subject, kept: Decision) -> Settlement:
    """Nothing is removed beside a snapshot that is to stay or not decided yet: one purge would reach both."""
    pod = other.owner
    why = f"another pod's snapshot of the VM stays ({pod.namespace}/{pod.pod_name} {pod.pod_uid}): {kept.why}"
    if kept.action is Action.NOTHING:
        return Settlement(Outcome.SETTLED, Decision(kept.row, Action.NOTHING, why))
    return Settlement(Outcome.LATER, Decision(kept.row, Action.WAIT, why))


_OUTCOMES = {
    Result.DONE: Outcome.SETTLED,
    Result.NOTHING_THERE: Outcome.NOTHING_THERE,
    Result.AGAIN: Outcome.RESYNC,
    Result.HELD: Outcome.LATER,
}
