"""Keeps every agent told who its owners are, and has every snapshot decided that nobody claims.

Why this exists: this is where watches, agents and the table meet. It keeps nothing that a restart would lose: what
agents name after a sync, the pods and the sets are the state, and every decision is made from them again. What it
remembers, the last versions of pods whose deletion it saw, only makes decisions better.

Three queues of names: nodes to be told their owners, nodes whose answers are to be decided, and pods whose flag is to
be made a promise at once. One agent that hangs holds one worker of many.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from controller.agents.cache_client import AgentCallError, AgentChannels
from controller.deletion.actions import Actions, SnapshotCalls
from controller.deletion.bookkeeping import Bookkeeping
from controller.deletion.books import Books
from controller.deletion.brake import Brake
from controller.deletion.gathering import Gathering
from controller.deletion.metrics import ODD_PODS, OWNER_SYNCS
from controller.deletion.model import Action
from controller.deletion.owners import AgentBook, Reply
from controller.deletion.pace import Pace
from controller.deletion.pods import KEEP, MANAGED, PodRecord
from controller.deletion.refusals import Refusals, concerns_whole_agent
from controller.deletion.settling import Outcome, PodSource, Settler
from controller.deletion.subjects import Subject, beside, subjects_of
from controller.deletion.sweep import Sweep
from controller.kube.errors import KubeError
from controller.kube.leadership import Leadership
from controller.kube.queue import WorkQueue

# Its next pod lives elsewhere. What it said last is history then, also when that next pod is gone one day.
_MOVED_ON = (4, 5)


class DeletionReconciler:
    """`run` until cancelled. It is the `PodListener` of the pods it is given, which may call it at any time."""

    def __init__(
        self,
        *,
        pods: PodSource,
        settler: Settler,
        channels: AgentChannels,
        calls: SnapshotCalls,
        leadership: Leadership,
        recover: Callable[[int], Awaitable[None]],
        actions: Actions,
        brake: Brake,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        audit_only: bool = False,
    ) -> None:
        """`recover` is the elector's; `clock` gives monotonic seconds, `wall` Unix seconds."""
        self.brake = brake
        self.syncs = WorkQueue(clock=clock)
        self.decisions = WorkQueue(clock=clock)
        self.retains = WorkQueue(clock=clock)
        self._channels = channels
        self._calls = calls
        self._leadership = leadership
        self._refusals = Refusals(recover, actions)
        self._pace = pace or Pace()
        self.clock = clock
        self._wall = wall
        self._audit_only = audit_only
        self._revision = 0
        self._books = Books()
        self._gathering = Gathering(self.syncs.add, self._pace, clock)
        self._pods = pods
        self._settler = settler
        self._bookkeeping = Bookkeeping(self.syncs, brake, self._pace, clock)
        self._sweep = Sweep(
            pods=pods,
            channels=channels,
            books=self._books,
            queues={"syncs": self.syncs, "decisions": self.decisions, "retains": self.retains},
            brake=brake,
            pace=self._pace,
            clock=clock,
            may_act=self._may_act,
        )
        leadership.subscribe(self._leadership_changed)

    # What the pods tell.

    def owners_changed(self, node: str) -> None:
        """See PodListener."""
        if self._may_act() and self._pods.has_synced and self._channels.is_known(node):
            self._books.open(node).due = True
            self.syncs.add(node)

    def claim_changed(self, record: PodRecord) -> None:
        """See PodListener. Copies of the VM on other nodes may be woken elsewhere, superseded, or nobody's again."""
        for node in self._books.with_copies_of_pod(record.namespace, record.name):
            if node != record.node:
                self.syncs.add_after(node, self._pace.gather)

    def pod_deleted(self, record: PodRecord) -> None:
        """See PodListener. Only while leading is a deletion seen."""
        node, is_known = record.node, self._channels.is_known(record.node)
        if not self._may_act() or not (is_known or record.has(MANAGED) or record.has(KEEP)):
            return
        now = self.clock()
        book = self._books.open(node)
        book.depart(record, now)
        if is_known:
            book.undone[record.uid] = now
        else:
            ODD_PODS.labels("node without agent").inc()
        if not (record.said().keep or record.said().disrupted):
            self.owners_changed(node)
            return
        self.retains.add(f"{node} {record.uid}")
        if is_known:
            self._gathering.add(node)

    def pod_lost(self, record: PodRecord) -> None:
        """See PodListener."""
        book = self._books.find(record.node)
        if book is not None:
            book.lose(record)

    def set_changed(self, set_uid: str) -> None:
        """A set began or ceased to be, was suspended or woken: what is kept for it may be decided otherwise now."""
        for node in self._books.with_copies_of_set(set_uid):
            self.syncs.add_after(node, self._pace.gather)  # What was kept since is not in the last answer.

    def undone(self) -> set[str]:
        """Return the UIDs of owners whose snapshots wait for a decision to be carried out."""
        return {uid for book in self._books for uid in book.undone}

    def release_brake(self) -> int:
        """A person's word: what the brake holds now goes on. Return how many purges that is."""
        count = self.brake.release()
        for book in self._books:
            if book.undone:
                self.decisions.add(book.node)
        return count

    # Work.

    async def run(self) -> None:
        """Tell, decide and keep until cancelled."""
        workers = self._pace.workers
        async with asyncio.TaskGroup() as group:
            group.create_task(self.syncs.run(self._refusals.guarded("SyncOwners", self._sync), workers=workers))
            group.create_task(self.decisions.run(self._refusals.guarded("Decide", self._decide), workers=workers))
            group.create_task(
                self.retains.run(self._refusals.guarded("RetainSnapshots", self._retain), workers=workers)
            )
            group.create_task(self._gathering.run())
            group.create_task(self._sweep.run())

    async def _sync(self, node: str) -> None:
        """Tell one agent its owners and keep its answer for decisions."""
        channel = self._channels.channel(node)
        if channel is None or not self._may_act():
            return  # The sweep comes back to it.
        book = self._books.open(node)
        if not self._pods.is_current:
            book.due = True
            return
        self._gathering.discard(node)
        bound = list(self._pods.on_node(node))
        unheard = book.unheard(bound)
        named = bound + unheard
        epoch = self._leadership.epoch or 0
        self._revision += 1
        revision = self._revision
        book.unsure, book.due = True, False
        try:
            if self._audit_only:
                found = await self._calls.list_unclaimed(node)
            else:
                found = await self._calls.sync_owners(node, [record.owner() for record in named], revision)
        except AgentCallError:
            book.due = True
            raise
        reply = Reply(epoch, revision, found, frozenset(record.uid for record in named))
        self._books.acknowledged(book, named, reply, channel, self.clock())
        OWNER_SYNCS.labels("applied").inc()
        if unheard:
            self.syncs.add(node)
        self.decisions.add(node)

    async def _decide(self, node: str) -> None:
        """Decide everything that the last answer of one agent leaves open."""
        book = self._books.find(node)
        if book is None or book.reply is None or not self._may_act():
            return
        reply = book.reply
        if reply.epoch != (self._leadership.epoch or 0):
            self.syncs.add(node)
            return
        failure: Exception | None = None
        open_uids: set[str] = set()
        subjects = subjects_of(reply.found, book.departures, self._wall())
        # Few among many kept ones, which no purge reaches.
        unkept = [subject for subject in subjects if subject.retention is None]
        for subject in subjects:
            uid = subject.owner.pod_uid
            if uid in reply.done:
                continue
            open_uids.add(uid)
            if book.is_behind(subject.owner):
                book.due = True
                continue
            try:
                await self._settle(book, reply, subject, beside(subject, unkept))
            except (KubeError, AgentCallError) as error:
                book.undone.setdefault(uid, self.clock())
                if concerns_whole_agent(error):
                    raise
                # One unreadable set or odd snapshot holds up its own owner and nobody else.
                failure = failure or error
        self._bookkeeping.settle_absent(book, reply, open_uids)
        if failure is not None:
            raise failure

    async def _settle(self, book: AgentBook, reply: Reply, subject: Subject, others: Sequence[Subject]) -> None:
        node, uid = book.node, subject.owner.pod_uid
        settlement = await self._settler.settle(node, subject, reply.revision, others)
        outcome = settlement.outcome
        if outcome in (Outcome.SETTLED, Outcome.NOTHING_THERE):
            if settlement.decision.action is not Action.NOTHING:
                reply.done.add(uid)
                book.setbacks = 0
            self._bookkeeping.settled(book, uid, settlement.decision.action)
            if settlement.decision.row in _MOVED_ON:
                book.drop(uid)
            return
        book.undone.setdefault(uid, self.clock())
        if outcome is Outcome.LATER:
            self.decisions.add_after(node, settlement.again_seconds)
        else:
            book.setbacks += 1
            self.syncs.add_after(node, min(60.0, 2.0 ** min(book.setbacks - 1, 6)))

    async def _retain(self, name: str) -> None:
        """Make the flag of a pod that was just deleted a promise, without waiting for a sync."""
        node, _, uid = name.partition(" ")
        book = self._books.find(node)
        departure = book.open.get(uid) if book is not None else None
        if book is None or departure is None or not self._may_act():
            return
        if self._channels.channel(node) is None:
            return  # Decided from state when it is back.
        subject = Subject(departure.record.owner(), (), None, departure.record.said())
        async with book.slots:
            settlement = await self._settler.promise(node, subject)
        if settlement is None:
            self.owners_changed(node)  # The table says something else, and the sync's answer tells what there is.
            return
        if settlement.outcome is Outcome.SETTLED:
            self._bookkeeping.answered(departure, Action.RETAIN)
            is_over = departure.heard or not departure.crossed
        else:
            is_over = departure.heard and settlement.outcome is Outcome.NOTHING_THERE
        if is_over:
            self._bookkeeping.settled(book, uid, Action.RETAIN)
        else:
            self.owners_changed(node)  # It is named once more, and decided after that.
        if settlement.outcome is Outcome.NOTHING_THERE:
            self._bookkeeping.look_again(node, departure)

    # Keeping going.

    def _leadership_changed(self, epoch: int | None) -> None:
        if epoch is None:
            # What was seen is worth nothing to a later reign: in between others may have decided.
            self._books.clear()
            self.brake.clear()
            return
        for queue in (self.syncs, self.decisions, self.retains):
            queue.hasten_all(self._pace.gather)
        for node in self._channels.nodes():
            self.syncs.add(node)

    def _may_act(self) -> bool:
        return self._audit_only or self._leadership.epoch is not None
