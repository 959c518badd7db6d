"""One look at every agent, for commands that show or check and then end."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from common.tasks import end_tasks
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import AgentSource, Publish
from controller.agents.fleet import AgentFleet
from controller.nodes.report import NodeReport

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What one agent said: a report, or why there is none. `node_name` may be empty when nobody knows it."""

    node_name: str
    address: str
    report: NodeReport | None
    problem: str


class _Collector:
    """An observer that keeps the last report of each address."""

    def __init__(self) -> None:
        self.reports: dict[str, NodeReport] = {}

    def expect_agent(self, agent: str, node_name: str) -> None:
        """Nothing to note."""

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """Keep it."""
        self.reports[agent] = report

    def observe_contact(self, agent: str, node_name: str) -> None:
        """Nothing to note."""

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """Nothing to note; the connection keeps why."""

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """Nothing to note; the connection keeps why."""

    def forget_agent(self, agent: str, node_name: str) -> None:
        """Nothing to note."""


class _Narrowed:
    """A source that names only the agents that may speak for one node."""

    def __init__(self, source: AgentSource, node_name: str) -> None:
        self._source = source
        self._node_name = node_name

    @property
    def name(self) -> str:
        """The source's."""
        return self._source.name

    @property
    def problem(self) -> str:
        """The source's."""
        return self._source.problem

    @property
    def answered(self) -> bool:
        """The source's."""
        return self._source.answered

    async def run(self, publish: Publish) -> None:
        """Publish what is left."""
        names = ("", self._node_name)
        await self._source.run(lambda found: publish(tuple(each for each in found if each.node_name in names)))


async def survey_agents(
    sources: Sequence[AgentSource], credentials: ClientCredentials | None, wait_seconds: float, *, only: str = ""
) -> tuple[list[AgentAnswer], list[str]]:
    """Ask every agent once; return the answers by node name, and what could not be looked up.

    With `only`, agents known to be of other nodes are left alone.

    Ends as soon as every source has answered and every agent has reported or failed once, at the latest after
    `wait_seconds`.
    """
    collector = _Collector()
    asked = [_Narrowed(source, only) for source in sources] if only else sources
    fleet = AgentFleet(asked, collector, credentials)
    running = asyncio.create_task(fleet.run(), name="survey")
    try:
        try:
            async with asyncio.timeout(wait_seconds):
                # A one-shot command looks; events from each connection would be there for it alone.
                while not running.done() and not _is_complete(fleet):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            pass
        if running.done():
            running.result()
        answers = [
            AgentAnswer(
                connection.node_name,
                connection.endpoint.address,
                collector.reports.get(connection.endpoint.address),
                connection.problem,
            )
            for connection in fleet.connections
        ]
        return sorted(answers, key=lambda answer: (answer.node_name, answer.address)), fleet.unready_reasons()
    finally:
        await end_tasks([running])


def _is_complete(fleet: AgentFleet) -> bool:
    return all(source.answered or source.problem for source in fleet.sources) and all(
        connection.is_tried for connection in fleet.connections
    )
