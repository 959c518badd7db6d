"""Report + live Node → what to write. The one place that decides about Nodes.

Pure: no clock, no request, no log. The writer carries the steps out, a dry run prints them, tests check them. After
every write the plan is made again from the live object, until nothing is left to do: what the live object shows is
success, not what was sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Literal

from controller.nodes.claims import MACHINE_CHANGED
from controller.nodes.conditions import (
    WantedCondition,
    has_other_provider_id,
    judge_conditions,
    says,
    superfluous,
    unreachable_condition,
    wanted_conditions,
)
from controller.nodes.conflicts import FieldMemory, Judgement, remember
from controller.nodes.draft import ConditionWork, label_steps, status_steps, unreachable_step
from controller.nodes.model import (
    CONTROLLER,
    REGISTERED_BY,
    REGISTRATION,
    ROLE_LABEL,
    TAINT,
    Instant,
    LiveLease,
    LiveNode,
)
from controller.nodes.report import NodeReport
from controller.nodes.skew import SKEW, skew_message, skew_of
from controller.nodes.steps import NODES_PATH, Step, node_path
from controller.nodes.wanted import judge_fields, report_fault

Lifecycle = Literal["auto", "own", "external"]


class Mode(Enum):
    """Who keeps a Node alive."""

    OWN = "own"
    """We do: Lease, Ready, addresses."""
    EXTERNAL = "external"
    """Somebody else does; we write labels, capacity, allocatable and conditions of our own."""
    NONE = "none"
    """We write nothing at all."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What operators choose: whose the Nodes' life is, whether Nodes nobody marked are adopted, the taint."""

    lifecycle: Lifecycle = "auto"
    adopt: bool = False
    taint: bool = True


@dataclass(frozen=True, slots=True)
class PlanInput:
    """Everything a plan is made from. `live` is None when there is no such Node, `report` when none has come yet."""

    name: str
    report: NodeReport | None
    reachable: bool
    live: LiveNode | None
    now: Instant
    silence_reason: str = ""
    lease: LiveLease | None = None
    settings: NodeSettings = field(default_factory=NodeSettings)
    memory: FieldMemory = field(default_factory=FieldMemory)


@dataclass(frozen=True, slots=True)
class PlanEvent:
    """Something a person looking at the Node should see."""

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order, and what they rest on.

    `refusal` is a stable reason when the Node may not be written. `recheck_seconds` asks for another plan at that time
    although nothing may have changed by then.
    """

    name: str
    mode: Mode
    steps: tuple[Step, ...] = ()
    refusal: str = ""
    events: tuple[PlanEvent, ...] = ()
    recheck_seconds: float | None = None
    wanted: Mapping[str, str | None] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    conditions: tuple[WantedCondition, ...] = ()
    contested_conditions: bool = False

    def as_object(self) -> Mapping[str, Any]:
        """The plan as a plain object for people and machines."""
        shown: dict[str, Any] = {"node": self.name, "lifecycle": self.mode.value}
        if self.refusal:
            shown["refused"] = self.refusal
        if self.events:
            shown["events"] = [{"type": item.type, "reason": item.reason, "note": item.note} for item in self.events]
        return shown | {"requests": [step.as_object() for step in self.steps]}


def plan_node(given: PlanInput) -> Plan:
    """Decide what to write on one Node."""
    live, report = given.live, given.report
    if live is None:
        return _plan_registration(given, report) if report and given.reachable else Plan(given.name, Mode.NONE)
    if live.deleting:
        return Plan(given.name, Mode.NONE)
    refusal = _refusal(given, live)
    if refusal:
        return refusal
    mode = _mode(live, given.lease, given.settings)
    if report is None or not given.reachable:
        return _plan_silence(given, live, mode)
    return _plan_assertion(given, report, live, mode)


def memory_after(
    plan: Plan, before: FieldMemory, live: LiveNode, now: Instant, *, written: frozenset[str]
) -> FieldMemory:
    """What to remember after a plan of which the fields `written` were sent; `live` is the Node after that."""
    after = remember(before, plan.judgements, plan.wanted, live, now, written=written)
    conditions = {
        wanted.type: wanted.statement
        for wanted in plan.conditions
        if before.conditions.get(wanted.type) == wanted.statement
        or ((seen := live.condition(wanted.type)) is not None and says(seen, wanted))
    }
    contested = plan.contested_conditions and any(name.startswith("condition:") for name in written)
    asserted_at = now.monotonic if contested else before.conditions_at
    return replace(after, conditions=conditions, conditions_at=asserted_at)


def _refusal(given: PlanInput, live: LiveNode) -> Plan | None:
    """A plan without steps for a Node, machine or report that we must not write, None when we may."""
    if live.is_kubelets:
        return _refuse(given, "KubeletNode", "A kubelet runs this Node; its resources are the kubelet's to publish.")
    if not live.is_ours and ROLE_LABEL not in live.labels and not given.settings.adopt:
        return _refuse(
            given,
            "NotAdopted",
            f"The Node exists and was not registered by us. Label it {ROLE_LABEL} to have it adopted.",
        )
    if given.report is None or not given.reachable:
        return None
    machine_id, expected = given.report.host.machine_id, live.expected_machine_id
    if machine_id and expected and machine_id != expected:
        return _refuse(
            given,
            MACHINE_CHANGED,
            f"The agent runs on machine {machine_id}, the Node belongs to {expected}. "
            f"If that is right: cocoon-node-controller accept {given.name}",
        )
    fault = report_fault(given.report)
    # The agent lives, so its Node is kept alive with the last good values.
    kept = _mode(live, given.lease, given.settings)
    return _refuse(given, "InvalidReport", _fault_note(fault), kept) if fault else None


def _refuse(given: PlanInput, reason: str, note: str, mode: Mode = Mode.NONE) -> Plan:
    spoken_for = given.report is not None and given.reachable
    events = (PlanEvent("Warning", reason, note),) if spoken_for else ()
    return Plan(given.name, mode, refusal=reason, events=events)


def _fault_note(fault: str) -> str:
    return f"The agent's report is not written, the last good values stay: {fault}."


def _mode(live: LiveNode, lease: LiveLease | None, settings: NodeSettings) -> Mode:
    if not live.is_ours or settings.lifecycle == "external":
        return Mode.EXTERNAL
    if settings.lifecycle == "auto" and lease is not None and lease.is_foreign:
        return Mode.EXTERNAL
    return Mode.OWN


def _plan_registration(given: PlanInput, report: NodeReport) -> Plan:
    """Create the Node, then everything an existing one would get."""
    fault = report_fault(report)
    if fault:
        return _refuse(given, "InvalidReport", _fault_note(fault))
    spec: dict[str, Any] = {}
    if report.provider_id:
        spec["providerID"] = report.provider_id
    if given.settings.taint:
        spec["taints"] = [TAINT]
    metadata = {"name": given.name, "annotations": {REGISTERED_BY: CONTROLLER}}
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    if spec:
        body["spec"] = spec
    create = Step("create", NODES_PATH, body, "there is no such Node", field_manager=REGISTRATION)
    fresh = LiveNode(given.name, annotations={REGISTERED_BY: CONTROLLER}, provider_id=report.provider_id)
    following = _plan_assertion(given, report, fresh, _mode(fresh, given.lease, given.settings))
    event = PlanEvent("Normal", "Registered", "Registered this Node for the agent on the host.")
    return replace(following, steps=(create, *following.steps), events=(event, *following.events))


def _plan_assertion(given: PlanInput, report: NodeReport, live: LiveNode, mode: Mode) -> Plan:
    own = mode is Mode.OWN
    fields = judge_fields(report, live, given.memory, given.now, own=own)
    conditions = wanted_conditions(report, live, fields.ceded, own=own)
    verdict = judge_conditions(conditions, live, given.memory, given.now)
    work = ConditionWork(conditions, verdict.types, superfluous(conditions, live))
    steps = [
        *_provider_id_steps(report, live),
        *label_steps(live, fields),
        *status_steps(live, fields, work, given.now),
    ]
    waits = [wait for wait in (fields.wait_seconds, verdict.wait_seconds) if wait is not None]
    return Plan(
        given.name,
        mode,
        tuple(steps),
        events=tuple(_assertion_events(given, report, live, fields.ceded)),
        recheck_seconds=min(waits, default=None),
        wanted=fields.wanted,
        judgements=fields.judgements,
        conditions=conditions,
        contested_conditions=verdict.contested,
    )


def _provider_id_steps(report: NodeReport, live: LiveNode) -> list[Step]:
    """Set a provider id that was configured after registration; the API allows that once, from empty."""
    if not report.provider_id or live.provider_id or not live.is_ours:
        return []
    body = {"metadata": {"resourceVersion": live.resource_version}, "spec": {"providerID": report.provider_id}}
    reason = f"spec.providerID: absent → {report.provider_id}"
    return [Step("merge-patch", node_path(live.name), body, reason, field_manager=REGISTRATION)]


def _assertion_events(given: PlanInput, report: NodeReport, live: LiveNode, ceded: frozenset[str]) -> list[PlanEvent]:
    events: list[PlanEvent] = []
    newly_ceded = sorted(ceded - given.memory.ceded)
    if newly_ceded:
        note = f"Another writer keeps changing {', '.join(newly_ceded)}; left to it until its agent restarts."
        events.append(PlanEvent("Warning", "FieldConflict", note))
    if has_other_provider_id(report, live):
        note = f"The Node's provider id is {live.provider_id}, the agent's {report.provider_id}; the Node's stays."
        events.append(PlanEvent("Warning", "ProviderIDMismatch", note))
    skew = skew_of(report.agent_version)
    if skew.is_too_far and live.condition(SKEW) is None:
        events.append(PlanEvent("Warning", "VersionSkew", skew_message(report.agent_version, skew)))
    return events


def _plan_silence(given: PlanInput, live: LiveNode, mode: Mode) -> Plan:
    """Say that the agent is silent, on a Node that we have written before; everything else stays."""
    if not live.is_ours and not live.owned():
        return Plan(given.name, mode)
    condition = unreachable_condition(given.silence_reason)
    verdict = judge_conditions((condition,), live, given.memory, given.now)
    if not verdict.types:
        return Plan(given.name, mode, recheck_seconds=verdict.wait_seconds, conditions=(condition,))
    event = PlanEvent("Warning", "AgentUnreachable", f"{condition.message} ({condition.reason})")
    return Plan(
        given.name,
        mode,
        (unreachable_step(live, condition, given.now),),
        events=(event,),
        conditions=(condition,),
        contested_conditions=verdict.contested,
    )
