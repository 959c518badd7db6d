"""Which conditions a Node should carry, and whether the live ones need writing.

Conditions are not fought over: one that was in place and was changed by somebody is written again only when what we
have to say changed, or when it has become Unknown or vanished, and then at most once a minute or in ten minutes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.nodes.conflicts import CONDITION_REASON, CONDITION_TYPE, FieldMemory, conflict_message
from controller.nodes.model import Instant, LiveCondition, LiveNode
from controller.nodes.report import HostCondition, NodeReport
from controller.nodes.skew import SKEW, Skew, skew_message, skew_of

READY = "Ready"
REACHABLE = "CocoonAgentReachable"
PROVIDER_ID = "CocoonProviderIDMismatch"
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")

_UNKNOWN_PAUSE_SECONDS = 60.0
_VANISHED_PAUSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class WantedCondition:
    """A condition as it should be; when it last changed follows from the live one."""

    type: str
    status: str
    reason: str
    message: str

    @property
    def statement(self) -> tuple[str, str, str]:
        """What it says, without its type."""
        return (self.status, self.reason, self.message)


def is_ours(condition_type: str) -> bool:
    """Whether only we write conditions of this type, whoever runs the Node."""
    return condition_type.startswith("Cocoon") or condition_type == CONDITION_TYPE


def wanted_conditions(
    report: NodeReport, live: LiveNode | None, ceded: frozenset[str], *, own: bool
) -> tuple[WantedCondition, ...]:
    """Conditions of a Node whose agent answers; the standard ones only on Nodes that we keep alive (`own`)."""
    wanted = {
        REACHABLE: WantedCondition(REACHABLE, "True", "AgentReporting", "The agent on the host answers."),
    }
    if own:
        wanted[READY] = WantedCondition(READY, "True", "AgentReporting", "The agent on the host reports its resources.")
        for pressure in PRESSURES:
            wanted[pressure] = WantedCondition(pressure, "False", "NoPressureReported", "The agent reports none.")
    for condition in report.conditions:
        if condition.type not in (READY, REACHABLE) and (own or is_ours(condition.type)):
            wanted[condition.type] = _reported(condition)
    if ceded:
        wanted[CONDITION_TYPE] = WantedCondition(CONDITION_TYPE, "True", CONDITION_REASON, conflict_message(ceded))
    skew = skew_of(report.agent_version)
    if skew.is_too_far:
        reason = "AgentTooOld" if skew is Skew.TOO_OLD else "AgentTooNew"
        wanted[SKEW] = WantedCondition(SKEW, "True", reason, skew_message(report.agent_version, skew))
    if has_other_provider_id(report, live):
        wanted[PROVIDER_ID] = WantedCondition(
            PROVIDER_ID,
            "True",
            "ProviderIDDiffers",
            f"The agent's provider id is {report.provider_id!r}; a Node's can never be changed.",
        )
    return tuple(wanted[key] for key in sorted(wanted))


def unreachable_condition(reason: str) -> WantedCondition:
    """What a Node says whose agent does not answer; everything else on it stays."""
    return WantedCondition(
        REACHABLE, "False", reason or "AgentSilent", "The agent on the host does not answer; the last values stay."
    )


def has_other_provider_id(report: NodeReport, live: LiveNode | None) -> bool:
    """Whether the live Node has another provider id than the agent's."""
    return bool(report.provider_id and live and live.provider_id and live.provider_id != report.provider_id)


@dataclass(frozen=True, slots=True)
class ConditionVerdict:
    """Types to write; whether one of them was in place and lost to somebody; when to look again at those left alone."""

    types: frozenset[str]
    contested: bool = False
    wait_seconds: float | None = None


def judge_conditions(
    wanted: Iterable[WantedCondition], live: LiveNode, memory: FieldMemory, now: Instant
) -> ConditionVerdict:
    """Decide which of the wanted conditions to write."""
    types: set[str] = set()
    contested = False
    waits: list[float] = []
    for condition in wanted:
        seen = live.condition(condition.type)
        if seen is not None and says(seen, condition):
            continue
        if _was_in_place(condition, memory):
            wait = _restore_wait(seen, memory, now)
            if wait is None or wait > 0:
                waits.extend([wait] if wait else [])
                continue
            contested = True
        types.add(condition.type)
    return ConditionVerdict(frozenset(types), contested, min(waits, default=None))


def says(seen: LiveCondition, condition: WantedCondition) -> bool:
    """Whether the live condition needs no writing. Why an agent is silent may change its words while it is silent."""
    if condition.type == REACHABLE and condition.status == "False":
        return seen.status == "False"
    return (seen.status, seen.reason, seen.message) == condition.statement


def superfluous(wanted: Iterable[WantedCondition], live: LiveNode) -> frozenset[str]:
    """Types of our own that are on the Node by our doing and should no longer be."""
    keep = {condition.type for condition in wanted}
    owned = live.owned()
    return frozenset(
        condition.type
        for condition in live.conditions
        if is_ours(condition.type) and condition.type not in keep and f"condition:{condition.type}" in owned
    )


def body_of(condition: WantedCondition, live: LiveNode | None, now: Instant) -> Mapping[str, str]:
    """The condition as it is sent: its transition time moves only with its status, and no heartbeat."""
    seen = live.condition(condition.type) if live else None
    unchanged = seen is not None and seen.status == condition.status and seen.last_transition_time
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": seen.last_transition_time if seen and unchanged else now.timestamp,
    }


def copy_of(condition: LiveCondition) -> Mapping[str, str]:
    """A live condition as it is, to be sent along so that leaving it out does not take it off."""
    body = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
    }
    if condition.last_transition_time:
        body["lastTransitionTime"] = condition.last_transition_time
    return body


def _was_in_place(condition: WantedCondition, memory: FieldMemory) -> bool:
    known = memory.conditions.get(condition.type)
    if condition.type == REACHABLE and known is not None:
        return known[0] == condition.status
    return known == condition.statement


def _restore_wait(seen: LiveCondition | None, memory: FieldMemory, now: Instant) -> float | None:
    """Seconds until a lost condition may be written again (0: now), None when it is left to the other writer."""
    pause = _VANISHED_PAUSE_SECONDS
    if seen is not None:
        if seen.status != "Unknown":
            return None
        pause = _UNKNOWN_PAUSE_SECONDS
    return max(0.0, memory.conditions_at + pause - now.monotonic)


def _reported(condition: HostCondition) -> WantedCondition:
    # The API server refuses a condition without a reason only in newer types, but people need one in all of them.
    return WantedCondition(condition.type, condition.status, condition.reason or "Reported", condition.message)
