"""Who has been heard from, and when: what connections tell, kept by node name.

Everything here only makes a name due; what follows from it is decided when its turn comes.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from controller.nodes.claims import CONTACT_SECONDS, SECOND_AGENT, Choice, Claim, choose
from controller.nodes.metrics import REFUSALS
from controller.nodes.plan import PlanEvent
from controller.nodes.report import NodeReport


@dataclass(slots=True)
class RosterEntry:
    """The agents of one node name. `since` is monotonic; `reachable` and `refused` are as last decided."""

    since: float
    claims: dict[str, Claim] = field(default_factory=dict)
    speaker: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    reachable: bool | None = None

    def claim(self) -> Claim | None:
        """The claim of the agent that speaks for the name."""
        return self.claims.get(self.speaker) if self.speaker is not None else None


class AgentRoster(ABC):
    """An AgentObserver; what it hears becomes calls of `ask`, `hurry_lease` and `emit`."""

    def __init__(self) -> None:
        """Nobody is known."""
        self._entries: dict[str, RosterEntry] = {}

    @abstractmethod
    def ask(self, name: str, seconds: float = 0.0) -> None:
        """Look at this name in `seconds`."""

    @abstractmethod
    def hurry_lease(self, name: str) -> None:
        """The agent that speaks for this name has just been heard from."""

    @abstractmethod
    def emit(self, name: str, event: PlanEvent) -> None:
        """Tell people something about the Node."""

    def listen_anew(self) -> None:
        """Begin to listen, or listen again: whoever has not listened for a while cannot call anybody silent."""
        now = time.monotonic()
        for entry in self._entries.values():
            entry.since, entry.reachable = now, None
            entry.claims = {
                agent: claim
                for agent, claim in entry.claims.items()
                if claim.contact_at is None or claim.is_in_contact(now)
            }

    def expect_agent(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        entry = self.entry(node_name)
        known = entry.claims.get(agent)
        entry.claims[agent] = replace(known, configured=True) if known else Claim(time.monotonic())
        self.ask(node_name, CONTACT_SECONDS)

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """See AgentObserver."""
        entry = self.entry(report.node_name)
        now = time.monotonic()
        known = entry.claims.get(agent) or Claim(now)
        entry.claims[agent] = replace(
            known, contact_at=now, report=report, connected=True, configured=True, loss_reason=""
        )
        self.ask(report.node_name)
        self._hear(report.node_name, entry, agent)

    def observe_contact(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        entry = self.entry(node_name)
        now = time.monotonic()
        known = entry.claims.get(agent) or Claim(now)
        if not known.connected or not known.is_in_contact(now):
            self.ask(node_name)
        entry.claims[agent] = replace(known, contact_at=now, connected=True, configured=True, loss_reason="")
        self._hear(node_name, entry, agent)

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """See AgentObserver."""
        entry = self.entry(node_name)
        known = entry.claims.get(agent) or Claim(time.monotonic())
        entry.claims[agent] = replace(known, connected=False, loss_reason=reason)
        if len(entry.claims) > 1:
            self.ask(node_name)

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """See AgentObserver."""
        REFUSALS.labels(reason).inc()
        if node_name:
            self.emit(node_name, PlanEvent("Warning", reason, f"What the agent at {agent} says is refused: {message}"))

    def forget_agent(self, agent: str, node_name: str) -> None:
        """See AgentObserver."""
        entry = self.entry(node_name)
        known = entry.claims.get(agent)
        if known is None:
            return
        if agent == entry.speaker:
            entry.claims[agent] = replace(known, connected=False, configured=False, loss_reason="AgentNotConfigured")
        else:
            del entry.claims[agent]
        self.ask(node_name)

    def is_heard_from(self, name: str) -> bool:
        """Whether the agent that speaks for this name was heard from within 30 s."""
        entry = self._entries.get(name)
        claim = entry.claim() if entry else None
        return claim is not None and claim.is_in_contact(time.monotonic())

    def speaker_of(self, name: str) -> str | None:
        """The agent that may speak for this name, None when none may."""
        entry = self._entries.get(name)
        return entry.speaker if entry else None

    def has_agent(self, name: str) -> bool:
        """Whether any agent of this name is known, heard from or not."""
        entry = self._entries.get(name)
        return entry is not None and bool(entry.claims)

    def names_with_agents(self) -> Iterable[str]:
        """The names that have an agent; do not keep it across an await."""
        return (name for name, entry in self._entries.items() if entry.claims)

    def entry(self, name: str) -> RosterEntry:
        """The entry of this name, made when there is none."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = RosterEntry(time.monotonic())
        return entry

    def decide(self, name: str, expected_machine_id: str) -> RosterEntry:
        """Decide who speaks for the name, tell people about those who may not, and forget agents that are gone."""
        entry = self.entry(name)
        now = time.monotonic()
        choice = choose(entry.claims, expected_machine_id, entry.speaker, now)
        for agent, reason in choice.refused.items():
            if entry.refused.get(agent) != reason:
                REFUSALS.labels(reason).inc()
            self.emit(name, _refusal_event(name, agent, reason, entry, choice))
        entry.refused, entry.speaker = choice.refused, choice.agent
        entry.claims = {
            agent: claim for agent, claim in entry.claims.items() if claim.configured or agent == choice.agent
        }
        claim = entry.claim()
        entry.reachable = claim is not None and claim.is_in_contact(now)
        return entry

    def _hear(self, name: str, entry: RosterEntry, agent: str) -> None:
        if agent == entry.speaker:
            self.hurry_lease(name)


def silence_reason(entry: RosterEntry) -> str:
    """Why nobody speaks for the name, in one stable word."""
    claim = entry.claim()
    if claim is not None:
        return claim.loss_reason or "AgentSilent"
    if entry.refused:
        return min(entry.refused.values())
    reasons = sorted(claim.loss_reason for claim in entry.claims.values() if claim.loss_reason)
    if reasons:
        return reasons[0]
    if any(claim.contact_at is not None for claim in entry.claims.values()):
        return "NoUsableReport"
    return "NeverHeardFrom" if entry.claims else "AgentNotConfigured"


def _refusal_event(name: str, agent: str, reason: str, entry: RosterEntry, choice: Choice) -> PlanEvent:
    machine = entry.claims[agent].machine_id or "unknown"
    note = f"The agent at {agent} on machine {machine} reports this Node's name too and is refused"
    if reason == SECOND_AGENT:
        note += f"; the one at {choice.agent} speaks for it. Stop one of them."
    else:
        note += f": the Node belongs to another machine. If this is right: cocoon-node-controller accept {name}"
    return PlanEvent("Warning", reason, note)
