"""Brings each Node to what its agent reports: gathers what agents and watches say, plans, has the plan written.

Everything that arrives only makes a name due; what to do is decided from the newest report and the newest Node when its
turn comes. Nothing is kept that a restart would lose: conflicts in progress at most are met once more.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, RetryLater
from controller.kube.events import EventRecorder, Regarding
from controller.kube.queue import WorkQueue
from controller.nodes.claims import CONTACT_SECONDS, Choice, Claim, choose
from controller.nodes.conflicts import FieldMemory, ceded_fields
from controller.nodes.lease import LeaseKeeper
from controller.nodes.metrics import EVENTS, FIELD_CONFLICTS, NODES, REACHABLE_AGENTS, REFUSALS
from controller.nodes.model import Instant, LiveNode
from controller.nodes.plan import Mode, NodeSettings, Plan, PlanEvent, PlanInput, memory_after, plan_node
from controller.nodes.report import NodeReport
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
class _State:
    """What is known about one node name. Times are monotonic."""

    since: float
    claims: dict[str, Claim] = field(default_factory=dict)
    speaker: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    reachable: bool | None = None
    memory: FieldMemory | None = None
    instance_id: str = ""
    written: LiveNode | None = None
    mode: Mode = Mode.NONE
    refusal: str = ""
    planned_at: float = float("-inf")


def now() -> Instant:
    """This moment on both clocks."""
    return Instant(datetime.now(UTC), time.monotonic())


class NodeReconciler:
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
        self._settings = settings or NodeSettings()
        self._writer = NodeWriter(client)
        self._store = store
        self._events = events or EventRecorder(client, count=lambda outcome: EVENTS.labels(outcome).inc())
        self._queue = WorkQueue()
        self._states: dict[str, _State] = {}
        self.leases = LeaseKeeper(client, self, now, take_foreign=self._settings.lifecycle == "own")

    def use_store(self, store: NodeStore) -> None:
        """Read Nodes from this store; before `run` only. The store's changes go to `observe_node`."""
        self._store = store

    # What connections tell.

    def expect_agent(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        state = self._state(node_name)
        known = state.claims.get(agent)
        state.claims[agent] = replace(known, configured=True) if known else Claim(time.monotonic())
        self._queue.add_after(node_name, CONTACT_SECONDS)

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """See AgentObserver."""
        state = self._state(report.node_name)
        moment = time.monotonic()
        known = state.claims.get(agent) or Claim(moment)
        state.claims[agent] = replace(
            known, contact_at=moment, report=report, connected=True, configured=True, loss_reason=""
        )
        self._queue.add(report.node_name)
        self._hurry_lease(report.node_name, state, agent)

    def observe_contact(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        state = self._state(node_name)
        moment = time.monotonic()
        known = state.claims.get(agent) or Claim(moment)
        if not known.connected or not known.is_in_contact(moment):
            self._queue.add(node_name)
        state.claims[agent] = replace(known, contact_at=moment, connected=True, configured=True, loss_reason="")
        self._hurry_lease(node_name, state, agent)

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """See AgentObserver."""
        state = self._state(node_name)
        known = state.claims.get(agent)
        if known is not None:
            state.claims[agent] = replace(known, connected=False, loss_reason=reason)
            if len(state.claims) > 1:
                self._queue.add(node_name)

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """See AgentObserver."""
        REFUSALS.labels(reason).inc()
        if node_name:
            self._emit(node_name, PlanEvent("Warning", reason, f"What the agent at {agent} says is refused: {message}"))

    def forget_agent(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        state = self._state(node_name)
        known = state.claims.get(agent)
        if known is None:
            return
        if agent == state.speaker:
            state.claims[agent] = replace(known, connected=False, configured=False, loss_reason="AgentNotConfigured")
        else:
            del state.claims[agent]
        self._queue.add(node_name)

    # What the watch and the leases tell.

    def observe_node(self, name: str, live: LiveNode | None) -> None:
        """A Node changed; `live` is None when it was deleted."""
        state = self._states.get(name)
        if live is None:
            if state is not None:
                state.written = None
                self._queue.add(name)
            return
        if state is None:
            if not live.is_ours and not live.owned():
                return
            # A Node of ours whose agent nobody has told us about: it must not go on saying that its agent answers.
            self._state(name)
            self._queue.add_after(name, CONTACT_SECONDS)
            return
        if state.written is not None and not _is_newer(live, state.written):
            return
        self._queue.add_after(name, _CHANGE_PAUSE_SECONDS)

    def is_heard_from(self, name: str) -> bool:
        """See LeaseWatcher."""
        state = self._states.get(name)
        claim = state.claims.get(state.speaker) if state and state.speaker is not None else None
        return claim is not None and claim.is_in_contact(time.monotonic())

    def observe_foreign_lease(self, name: str, holder: str) -> None:
        """See LeaseWatcher."""
        note = f"{holder} renews this Node's Lease; Lease, Ready and addresses are left to it."
        self._emit(name, PlanEvent("Normal", "LifecycleExternal", note))
        self._queue.add(name)

    # What people see.

    def views(self) -> list[NodeView]:
        """All Nodes known, sorted by name."""
        return [self._view(name, state) for name, state in sorted(self._states.items())]

    async def plan(self, name: str) -> Plan:
        """What would be written for this name now. Reads the Node, changes nothing."""
        live = await self._live(name)
        state = self._state(name)
        choice = choose(state.claims, live.expected_machine_id if live else "", state.speaker, time.monotonic())
        return plan_node(self._plan_input(name, state, choice, live))

    # The work.

    async def run(self) -> None:
        """Take the leases over, then keep Nodes and leases right until cancelled."""
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
                await self.leases.take_over()
            except KubeError as exc:
                _LOG.warning("leases cannot be read, trying again: %s", exc, extra={"reason": exc.reason})
                wished = exc.retry_after_seconds if isinstance(exc, RetryLater) else 0.0
                await asyncio.sleep(max(wished, _TAKE_OVER_PAUSE_SECONDS))
            else:
                return

    async def _reconcile(self, name: str) -> None:
        live = await self._live(name)
        state = self._state(name)
        choice = choose(state.claims, live.expected_machine_id if live else "", state.speaker, time.monotonic())
        self._note_choice(name, state, choice)
        if not state.reachable and time.monotonic() - state.since < CONTACT_SECONDS:
            # Too early to call anybody silent.
            return
        if state.memory is None:
            state.memory = FieldMemory(ceded=ceded_fields(live))
        emitted: list[PlanEvent] = []

        def make_plan(node: LiveNode | None) -> Plan:
            plan = plan_node(self._plan_input(name, state, choice, node))
            emitted.extend(event for event in plan.events if event not in emitted)
            return plan

        def note(plan: Plan, node: LiveNode, written: frozenset[str]) -> None:
            self._remember(state, plan, node, written)

        outcome = await self._writer.converge(live, make_plan, note, name)
        for event in emitted:
            self._emit(name, event)
        if outcome.wrote and outcome.live is not None:
            state.written = outcome.live
        self._settle(name, state, outcome.plan, outcome.live)

    def _plan_input(self, name: str, state: _State, choice: Choice, live: LiveNode | None) -> PlanInput:
        moment = now()
        claim = state.claims.get(choice.agent) if choice.agent is not None else None
        return PlanInput(
            name=name,
            report=claim.report if claim else None,
            reachable=claim is not None and claim.is_in_contact(moment.monotonic),
            live=live,
            now=moment,
            silence_reason=_silence_reason(state.claims, choice),
            lease=self.leases.lease(name),
            settings=self._settings,
            memory=state.memory or FieldMemory(ceded=ceded_fields(live)),
        )

    def _note_choice(self, name: str, state: _State, choice: Choice) -> None:
        for agent, reason in choice.refused.items():
            if state.refused.get(agent) != reason:
                REFUSALS.labels(reason).inc()
            self._emit(name, _refused_agent_event(name, agent, reason, state.claims[agent]))
        state.refused = choice.refused
        state.speaker = choice.agent
        claim = state.claims.get(choice.agent) if choice.agent is not None else None
        state.reachable = claim is not None and claim.is_in_contact(time.monotonic())
        report = claim.report if claim else None
        if report is not None and report.instance_id != state.instance_id:
            if state.instance_id and state.memory is not None:
                state.memory = state.memory.forget_conflicts()
            state.instance_id = report.instance_id
        for agent, other in list(state.claims.items()):
            if not other.configured and agent != state.speaker:
                del state.claims[agent]

    def _remember(self, state: _State, plan: Plan, live: LiveNode, written: frozenset[str]) -> None:
        before = state.memory or FieldMemory()
        state.memory = memory_after(plan, before, live, now(), written=written)
        for name in state.memory.ceded - before.ceded:
            FIELD_CONFLICTS.labels(name.partition(":")[0]).inc()

    def _settle(self, name: str, state: _State, plan: Plan, live: LiveNode | None) -> None:
        """Keep or leave the Lease, and look again when the plan asks for it."""
        if plan.refusal and plan.refusal != state.refusal:
            REFUSALS.labels(plan.refusal).inc()
        state.mode, state.refusal, state.planned_at = plan.mode, plan.refusal, time.monotonic()
        if plan.mode is Mode.OWN and live is not None:
            self.leases.keep(name, live.uid)
        else:
            self.leases.release(name)
        if plan.recheck_seconds is not None:
            self._queue.add_after(name, plan.recheck_seconds + 0.1)
        if live is None and not state.claims:
            self._states.pop(name, None)
            self._queue.discard(name)

    async def _sweep(self) -> None:
        """Notice agents that fell silent, which nothing announces, and plan again what has long not been planned."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            moment = time.monotonic()
            reachable = 0
            modes = dict.fromkeys(Mode, 0)
            for name, state in self._states.items():
                heard = self.is_heard_from(name)
                reachable += heard
                modes[state.mode] += 1
                if heard != state.reachable or moment - state.planned_at > _RESYNC_SECONDS:
                    # planned_at moves at once, so that a name whose turn is late is not asked for again and again.
                    state.planned_at = moment
                    self._queue.add(name)
            REACHABLE_AGENTS.set(reachable)
            for mode, count in modes.items():
                NODES.labels(mode.value).set(count)

    async def _live(self, name: str) -> LiveNode | None:
        """The newest known state of the Node: the watch's or, when that lags behind, our own last write's answer."""
        if self._store is None:
            return await self._writer.read(name)
        cached = self._store.get(name)
        state = self._states.get(name)
        written = state.written if state else None
        if written is None:
            return cached
        if cached is not None and not _is_newer(written, cached):
            if state is not None:
                state.written = None
            return cached
        return written

    def _state(self, name: str) -> _State:
        state = self._states.get(name)
        if state is None:
            state = self._states[name] = _State(time.monotonic())
        return state

    def _hurry_lease(self, name: str, state: _State, agent: str) -> None:
        if agent == state.speaker:
            self.leases.hurry(name)

    def _emit(self, name: str, event: PlanEvent) -> None:
        self._events.emit(Regarding("Node", name), event.type, event.reason, event.note)

    def _view(self, name: str, state: _State) -> NodeView:
        claim = state.claims.get(state.speaker) if state.speaker is not None else None
        return NodeView(
            name=name,
            lifecycle=state.mode.value,
            reachable=self.is_heard_from(name),
            agent=state.speaker,
            report=claim.report if claim else None,
            silence_reason=""
            if state.reachable
            else _silence_reason(state.claims, Choice(state.speaker, state.refused)),
            refused_agents=state.refused,
            refusal=state.refusal,
            live=self._store.get(name) if self._store else state.written,
            ceded=state.memory.ceded if state.memory else frozenset(),
        )


def _silence_reason(claims: Mapping[str, Claim], choice: Choice) -> str:
    claim = claims.get(choice.agent) if choice.agent is not None else None
    if claim is not None:
        return claim.loss_reason or "AgentSilent"
    if choice.refused:
        return min(choice.refused.values())
    reasons = sorted(claim.loss_reason for claim in claims.values() if claim.loss_reason)
    if reasons:
        return reasons[0]
    return "NeverHeardFrom" if claims else "AgentNotConfigured"


def _refused_agent_event(name: str, agent: str, reason: str, claim: Claim) -> PlanEvent:
    where = f"The agent at {agent} on machine {claim.machine_id or 'unknown'}"
    return PlanEvent(
        "Warning",
        reason,
        f"{where} reports this Node's name and is refused. If it is right: cocoon-node-controller accept {name}",
    )


def _is_newer(left: LiveNode, right: LiveNode) -> bool:
    """Whether `left` is a later state of the Node than `right`; resource versions of one kind count up."""
    if left.uid != right.uid or not (left.resource_version.isdecimal() and right.resource_version.isdecimal()):
        return left.resource_version != right.resource_version
    return int(left.resource_version) > int(right.resource_version)
