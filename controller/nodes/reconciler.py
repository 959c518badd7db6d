"""Brings each Node to what its agent reports: hears of agents, Nodes and leases, plans, has the plan written.

Everything that arrives only makes a name due; what to do is decided from the newest report and the newest Node when its
turn comes. Nothing is kept that a restart would lose: conflicts in progress at most are met once more.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from common.logging import fields
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, RetryLater
from controller.kube.events import EventRecorder, Regarding
from controller.kube.queue import WorkQueue
from controller.nodes.budget import WriteBudget
from controller.nodes.claims import CONTACT_SECONDS
from controller.nodes.conflicts import FieldMemory, ceded_fields
from controller.nodes.lease import LeaseKeeper
from controller.nodes.metrics import EVENTS, FIELD_CONFLICTS, NODES, REACHABLE_AGENTS, REFUSALS
from controller.nodes.model import Instant, LiveNode
from controller.nodes.plan import Mode, NodeSettings, Plan, PlanEvent, PlanInput, memory_after, plan_node
from controller.nodes.report import NodeReport
from controller.nodes.roster import AgentRoster, RosterEntry, silence_reason
from controller.nodes.store import NodeStore
from controller.nodes.writer import NodeWriter

_WORKERS = 16
_SWEEP_SECONDS = 2.0
_RESYNC_SECONDS = 600.0
_CHANGE_PAUSE_SECONDS = 0.5
_TAKE_OVER_PAUSE_SECONDS = 2.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One Node as the controller sees it, for tables and status pages."""

    name: str
    lifecycle: str
    reachable: bool
    agent: str | None
    report: NodeReport | None
    silence_reason: str
    refused_agents: Mapping[str, str]
    refusal: str
    live: LiveNode | None
    ceded: frozenset[str]


@dataclass(slots=True)
class _Progress:
    """How far one Node has been brought. `written` is our last write's answer while the watch lags behind it."""

    memory: FieldMemory
    budget: WriteBudget
    instance_id: str = ""
    written: LiveNode | None = None
    mode: Mode = Mode.NONE
    refusal: str = ""
    planned_at: float = float("-inf")


def read_clocks() -> Instant:
    """This moment on both clocks."""
    return Instant(datetime.now(UTC), time.monotonic())


class NodeReconciler(AgentRoster):
    """Listens to connections (`AgentObserver`), to the watch of Nodes and to the leases, and keeps Nodes right."""

    def __init__(
        self,
        client: KubeClient,
        *,
        settings: NodeSettings | None = None,
        store: NodeStore | None = None,
        events: EventRecorder | None = None,
    ) -> None:
        """Without a `store`, Nodes are read from the API each time. `run` does the work."""
        super().__init__()
        self._settings = settings or NodeSettings()
        self._writer = NodeWriter(client)
        self._store = store
        self._events = events or EventRecorder(client, count=lambda outcome: EVENTS.labels(outcome).inc())
        self._queue = WorkQueue()
        self._progress: dict[str, _Progress] = {}
        self.leases = LeaseKeeper(client, self, read_clocks, take_foreign=self._settings.lifecycle == "own")

    def use_store(self, store: NodeStore) -> None:
        """Read Nodes from this store; before `run` only. The store's changes go to `observe_node`."""
        self._store = store

    def ask(self, name: str, seconds: float = 0.0) -> None:
        """See AgentRoster."""
        self._queue.add_after(name, seconds)

    def hurry_lease(self, name: str) -> None:
        """See AgentRoster."""
        self.leases.hurry(name)

    def emit(self, name: str, event: PlanEvent) -> None:
        """See AgentRoster."""
        self._events.emit(Regarding("Node", name), event.type, event.reason, event.note)

    def observe_node(self, name: str, live: LiveNode | None) -> None:
        """A Node changed; `live` is None when it was deleted."""
        known = name in self._entries
        progress = self._progress.get(name)
        if live is None:
            if progress is not None:
                progress.written = None
            if known:
                self.ask(name)
        elif not known:
            if live.is_ours or live.owned():
                # Ours, but nobody has told us about its agent: it must not go on saying that its agent answers.
                self.entry(name)
                self.ask(name, CONTACT_SECONDS)
        elif progress is None or progress.written is None or _is_newer(live, progress.written):
            self.ask(name, _CHANGE_PAUSE_SECONDS)

    def observe_foreign_lease(self, name: str, holder: str) -> None:
        """See LeaseWatcher."""
        note = f"{holder} renews this Node's Lease; Lease, Ready and addresses are left to it."
        self.emit(name, PlanEvent("Normal", "LifecycleExternal", note))
        self.ask(name)

    def views(self) -> list[NodeView]:
        """All Nodes known, sorted by name."""
        return [self._view(name, entry) for name, entry in sorted(self._entries.items())]

    async def run(self) -> None:
        """Take the leases over, then keep Nodes and leases right until cancelled.

        May be called again, by a process that lost the leadership and got it back.
        """
        self.listen_anew()
        await self._take_over_leases()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.leases.run())
            group.create_task(self._events.run())
            group.create_task(self._sweep())
            if self._store is not None:
                await self._store.wait_synced()
            group.create_task(self._queue.run(self._reconcile, workers=_WORKERS))

    async def _take_over_leases(self) -> None:
        while True:
            try:
                await self.leases.take_over(renew=self._settings.lifecycle != "external")
            except KubeError as exc:
                _LOG.warning("leases cannot be read, trying again", extra=fields(reason=exc.reason, error=str(exc)))
                wished = exc.retry_after_seconds if isinstance(exc, RetryLater) else 0.0
                await asyncio.sleep(max(wished, _TAKE_OVER_PAUSE_SECONDS))
            else:
                return

    async def _reconcile(self, name: str) -> None:
        live = await self._live(name)
        entry = self.decide(name, live.expected_machine_id if live else "")
        patience = entry.since + CONTACT_SECONDS - time.monotonic()
        if not entry.reachable and patience > 0:
            # Too early to call anybody silent.
            self.ask(name, patience + 0.1)
            return
        progress = self._progress.get(name)
        if progress is None:
            progress = self._progress[name] = _Progress(FieldMemory(ceded=ceded_fields(live)), WriteBudget())
        if (pause := progress.budget.pause(time.monotonic())) > 0:
            self.ask(name, pause)
            return
        self._note_instance(progress, entry)
        events: list[PlanEvent] = []

        def make_plan(node: LiveNode | None) -> Plan:
            plan = plan_node(self._plan_input(name, entry, progress, node))
            events.extend(event for event in plan.events if event not in events)
            return plan

        def note(plan: Plan, node: LiveNode, written: frozenset[str]) -> None:
            _remember(progress, plan, node, written)

        try:
            outcome = await self._writer.converge(live, make_plan, note, name)
        finally:
            for event in events:
                self.emit(name, event)
        if outcome.wrote:
            progress.budget.spend()
            progress.written = outcome.live
        self._settle(name, progress, outcome.plan, outcome.live)

    def _plan_input(self, name: str, entry: RosterEntry, progress: _Progress, live: LiveNode | None) -> PlanInput:
        claim = entry.claim()
        return PlanInput(
            name=name,
            report=claim.report if claim else None,
            reachable=bool(entry.reachable),
            live=live,
            now=read_clocks(),
            silence_reason=silence_reason(entry),
            lease=self.leases.lease(name),
            settings=self._settings,
            memory=progress.memory,
        )

    @staticmethod
    def _note_instance(progress: _Progress, entry: RosterEntry) -> None:
        claim = entry.claim()
        if claim is None or claim.report is None or claim.report.instance_id == progress.instance_id:
            return
        if progress.instance_id:
            progress.memory = progress.memory.forget_conflicts()
        progress.instance_id = claim.report.instance_id

    def _settle(self, name: str, progress: _Progress, plan: Plan, live: LiveNode | None) -> None:
        """Keep or leave the Lease, look again when the plan asks for it, forget what is gone for good."""
        if plan.refusal and plan.refusal != progress.refusal:
            REFUSALS.labels(plan.refusal).inc()
        progress.mode, progress.refusal, progress.planned_at = plan.mode, plan.refusal, time.monotonic()
        if plan.mode is Mode.OWN and live is not None:
            self.leases.keep(name, live.uid)
        else:
            self.leases.release(name)
        if plan.recheck_seconds is not None:
            self.ask(name, plan.recheck_seconds + 0.1)
        if live is None and not self._entries[name].claims:
            del self._entries[name], self._progress[name]
            self._queue.discard(name)

    async def _sweep(self) -> None:
        """Notice agents that fell silent, which nothing announces, and plan again what has long not been planned."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            moment = time.monotonic()
            reachable = 0
            modes = dict.fromkeys(Mode, 0)
            for name, entry in self._entries.items():
                heard = self.is_heard_from(name)
                reachable += heard
                progress = self._progress.get(name)
                if progress is not None:
                    modes[progress.mode] += 1
                    if moment - progress.planned_at > _RESYNC_SECONDS:
                        # Moved at once, so that a name whose turn is late is not asked for again and again.
                        progress.planned_at = moment
                        self.ask(name)
                if heard != entry.reachable:
                    self.ask(name)
            REACHABLE_AGENTS.set(reachable)
            for mode, count in modes.items():
                NODES.labels(mode.value).set(count)

    async def _live(self, name: str) -> LiveNode | None:
        """The newest known state of the Node: the watch's or, when that lags behind, our own last write's answer."""
        if self._store is None:
            return await self._writer.read(name)
        cached = self._store.get(name)
        progress = self._progress.get(name)
        if progress is None or progress.written is None:
            return cached
        if cached is not None and not _is_newer(progress.written, cached):
            progress.written = None
            return cached
        return progress.written

    def _view(self, name: str, entry: RosterEntry) -> NodeView:
        claim = entry.claim()
        progress = self._progress.get(name)
        return NodeView(
            name=name,
            lifecycle=progress.mode.value if progress else Mode.NONE.value,
            reachable=self.is_heard_from(name),
            agent=entry.speaker,
            report=claim.report if claim else None,
            silence_reason="" if entry.reachable else silence_reason(entry),
            refused_agents=entry.refused,
            refusal=progress.refusal if progress else "",
            live=self._store.get(name) if self._store else None,
            ceded=progress.memory.ceded if progress else frozenset(),
        )


def _remember(progress: _Progress, plan: Plan, live: LiveNode, written: frozenset[str]) -> None:
    before = progress.memory
    progress.memory = memory_after(plan, before, live, read_clocks(), written=written)
    for name in progress.memory.ceded - before.ceded:
        FIELD_CONFLICTS.labels(name.partition(":")[0]).inc()


def _is_newer(left: LiveNode, right: LiveNode) -> bool:
    """Whether `left` is a later state of the Node than `right`; resource versions of one kind count up."""
    if left.uid != right.uid or not (left.resource_version.isdecimal() and right.resource_version.isdecimal()):
        return left.resource_version != right.resource_version
    return int(left.resource_version) > int(right.resource_version)
