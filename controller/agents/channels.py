"""The open connections of the fleet by node, for calls: those of the agents that may speak for their node.

Why this exists: a snapshot is removed on the word of one agent about one host. Two agents that claim one node name, or
one on a machine that nobody accepted, keep their streams but are never called.
"""

from collections.abc import Iterable
from typing import Protocol

import grpc.aio

from controller.agents.fleet import AgentFleet
from controller.nodes.plan import PlanEvent
from controller.nodes.roster import AgentRoster


class Speakers(Protocol):
    """Who decides which agent speaks for a node; `AgentRoster` does."""

    def speaker_of(self, name: str) -> str | None:
        """Return the address of the agent that may speak for this node, None when none may."""
        ...

    def has_agent(self, name: str) -> bool:
        """Whether any agent of this node is known, heard from or not."""
        ...

    def names_with_agents(self) -> Iterable[str]:
        """Return the nodes that have an agent; do not keep it across an await."""
        ...


class FleetChannels:
    """The `AgentChannels` of a fleet."""

    def __init__(self, fleet: AgentFleet, speakers: Speakers) -> None:
        """`speakers` choose among several agents of one node."""
        self._fleet = fleet
        self._speakers = speakers

    def channel(self, node: str) -> grpc.aio.Channel | None:
        """See AgentChannels."""
        agent = self._speakers.speaker_of(node)
        return None if agent is None else self._fleet.channel(agent, node)

    def nodes(self) -> Iterable[str]:
        """See AgentChannels."""
        return self._speakers.names_with_agents()

    def is_known(self, node: str) -> bool:
        """See AgentChannels."""
        return self._speakers.has_agent(node)


class ListeningRoster(AgentRoster):
    """Chooses speakers and does nothing else, for a controller that only looks."""

    def ask(self, name: str, seconds: float = 0.0) -> None:  # noqa: ARG002 - see AgentRoster
        """See AgentRoster."""
        self.decide(name, "")

    def hurry_lease(self, name: str) -> None:
        """See AgentRoster."""

    def emit(self, name: str, event: PlanEvent) -> None:
        """See AgentRoster."""
