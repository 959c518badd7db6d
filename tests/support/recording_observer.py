"""An `AgentObserver` that writes down what it is told."""

from controller.nodes.report import NodeReport


class RecordingObserver:
    """Every call as a tuple in `calls`; reports and contacts counted by node name."""

    def __init__(self) -> None:
        """Nothing told yet."""
        self.calls: list[tuple[str, ...]] = []
        self.reports: list[NodeReport] = []
        self.contacts: dict[str, int] = {}

    def expect_agent(self, agent: str, node_name: str) -> None:
        """Write down."""
        self.calls.append(("expect", agent, node_name))

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """Write down and keep the report."""
        self.calls.append(("report", agent, report.node_name))
        self.reports.append(report)

    def observe_contact(self, agent: str, node_name: str) -> None:  # noqa: ARG002 - the protocol's signature
        """Count."""
        self.contacts[node_name] = self.contacts.get(node_name, 0) + 1

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """Write down."""
        self.calls.append(("loss", agent, node_name, reason))

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """Write down."""
        self.calls.append(("refusal", agent, node_name, reason, message))

    def forget_agent(self, agent: str, node_name: str) -> None:
        """Write down."""
        self.calls.append(("forget", agent, node_name))

    def losses(self) -> list[str]:
        """Return the reasons of all losses so far."""
        return [call[3] for call in self.calls if call[0] == "loss"]

    def refusals(self) -> list[tuple[str, ...]]:
        """Return all refusals so far."""
        return [call for call in self.calls if call[0] == "refusal"]
