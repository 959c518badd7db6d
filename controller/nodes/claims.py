"""Which of the agents that claim a node name may speak for it.

Normally there is one. Two at once, or one on another machine than the Node was written for, are a mistake or an attack
until an operator says otherwise: nothing is written on the strength of their reports.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.nodes.report import NodeReport

CONTACT_SECONDS = 30.0
"""An agent heard from within this time is reachable; three missed heartbeats."""

SECOND_AGENT = "SecondAgent"
MACHINE_CHANGED = "MachineChanged"


@dataclass(frozen=True, slots=True)
class Claim:
    """What one agent has told about a node name. Times are monotonic seconds; `since` is when we learnt of it."""

    since: float
    contact_at: float | None = None
    report: NodeReport | None = None
    connected: bool = False
    configured: bool = True
    loss_reason: str = ""

    def is_in_contact(self, now: float) -> bool:
        """Whether it was heard from within CONTACT_SECONDS."""
        return self.contact_at is not None and now - self.contact_at < CONTACT_SECONDS

    @property
    def machine_id(self) -> str:
        """The reported machine id, empty when unknown."""
        return self.report.host.machine_id if self.report else ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The agent that may speak, None when none may, and why each other one that wants to may not."""

    agent: str | None
    refused: Mapping[str, str]


def choose(claims: Mapping[str, Claim], expected_machine_id: str, current: str | None, now: float) -> Choice:
    """Decide who speaks for a node name.

    Of the agents in contact, those on the expected machine (any, while none is expected) are candidates; one that is
    no longer connected gives way to one that is, so that a host may change its address. Of several the one that has
    been speaking goes on, else the one known longest. The others are refused with `SecondAgent`, agents on another
    machine with `MachineChanged`.
    """
    refused: dict[str, str] = {}
    candidates: list[str] = []
    for agent, claim in claims.items():
        if claim.report is None or not claim.configured or not claim.is_in_contact(now):
            continue
        if expected_machine_id and claim.machine_id and claim.machine_id != expected_machine_id:
            refused[agent] = MACHINE_CHANGED
        else:
            candidates.append(agent)
    if not candidates:
        return Choice(_silent_speaker(claims, expected_machine_id, current), refused)
    candidates = [agent for agent in candidates if claims[agent].connected] or candidates
    speaker = current if current in candidates else min(candidates, key=lambda agent: (claims[agent].since, agent))
    refused.update({agent: SECOND_AGENT for agent in candidates if agent != speaker})
    return Choice(speaker, refused)


def _silent_speaker(claims: Mapping[str, Claim], expected_machine_id: str, current: str | None) -> str | None:
    """The agent whose silence counts: the one that spoke last, unless its machine is the wrong one."""
    claim = claims.get(current) if current is not None else None
    if claim is None or (expected_machine_id and claim.machine_id and claim.machine_id != expected_machine_id):
        return None
    return current
