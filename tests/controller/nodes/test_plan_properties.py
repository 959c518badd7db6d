"""Whatever reports and other writers do, the plan converges, keeps what is others', and then writes nothing."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.nodes.report import HostCondition, NodeReport
from tests.controller.nodes.building import MANAGED_LABELS, ModelCluster, ModelNode, report

_AMOUNTS = st.sampled_from(["1", "2", "100m", "1Gi", "1073741824", "3435973836", "8Gi"])
_TEXTS = st.sampled_from(["", "a", "b"])
_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "hugepages-1Gi")
_NEEDED = ("cpu", "memory", "ephemeral-storage")


@st.composite
def reports(draw: st.DrawFn) -> NodeReport:
    """Reports with any mix of labels, amounts and conditions."""
    capacity: dict[str, str] = {name: draw(_AMOUNTS) for name in _RESOURCES if name in _NEEDED or draw(st.booleans())}
    conditions = [
        HostCondition(kind, draw(st.sampled_from(["True", "False"])), "Reason", draw(_TEXTS))
        for kind in ("DiskPressure", "CocoonMemoryOvercommitted")
        if draw(st.booleans())
    ]
    return report(
        labels={key: draw(_TEXTS) for key in MANAGED_LABELS if draw(st.booleans())},
        capacity=capacity,
        allocatable={name: draw(_AMOUNTS) for name in capacity},
        conditions=tuple(conditions),
    )


def assert_in_order(node: ModelNode, wanted: NodeReport) -> None:
    """The live Node shows what the report says, whoever else wrote to it."""
    live = node.live()
    for key in wanted.managed_label_keys:
        assert live.labels.get(key) == wanted.labels.get(key)
    for have, want in ((live.capacity, wanted.capacity), (live.allocatable, wanted.allocatable)):
        assert {key for key in have if key.startswith("hugepages-")} == {
            key for key in want if key.startswith("hugepages-")
        }
        assert set(want) <= set(have)


@given(first=reports(), second=reports(), existing=st.booleans())
def test_every_report_is_reached_from_every_other_and_then_nothing_is_written(
    first: NodeReport, second: NodeReport, existing: bool
) -> None:
    cluster = ModelCluster(_foreign_node() if existing else None)
    for wanted in (first, second):
        cluster.converge(wanted)
        assert cluster.node is not None
        assert_in_order(cluster.node, wanted)
        writes = cluster.writes
        cluster.restart_controller()
        cluster.converge(wanted)
        assert cluster.writes == writes


def _foreign_node() -> ModelNode:
    node = ModelNode("host-1")
    node.update("somebody", "label:node-role.kubernetes.io/cocoon-vm", "")
    node.update("somebody", "label:cocoonstack.io/snapshot-cpu-class", "theirs")
    node.update("somebody", "capacity:hugepages-1Gi", "4Gi")
    node.annotations["cocoonstack.io/registered-by"] = "cocoon-node-controller"
    return node


class ManyWriters(RuleBasedStateMachine):
    """Reports, silence, restarts and another writer in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ModelCluster()
        self.wanted = report()
        self.cluster.converge(self.wanted)
        self.theirs: dict[str, str] = {}

    @property
    def node(self) -> ModelNode:
        """The Node, which nothing here removes."""
        assert self.cluster.node is not None
        return self.cluster.node

    @rule(new=reports(), seconds=st.integers(0, 1000))
    def report_changes(self, new: NodeReport, seconds: int) -> None:
        """The agent reports something else."""
        self.cluster.seconds += seconds
        self.wanted = new
        self.cluster.converge(new)

    @rule()
    def agent_restarts(self) -> None:
        """The same report from a new instance: conflicts start anew."""
        self.cluster.memory = self.cluster.memory.forget_conflicts()
        self.cluster.converge(self.wanted)

    @rule()
    def controller_restarts(self) -> None:
        """Memory is lost."""
        self.cluster.restart_controller()
        self.cluster.converge(self.wanted)

    @rule(seconds=st.integers(30, 5000))
    def agent_is_silent(self, seconds: int) -> None:
        """Nothing but the one condition changes."""
        self.cluster.seconds += seconds
        before = dict(self.node.values)
        self.cluster.converge(self.wanted, reachable=False)
        assert self.node.values == before
        self.cluster.converge(None, reachable=False)
        assert self.node.values == before

    @rule(
        key=st.sampled_from(["label:team", "capacity:example.com/gpu", "address:ExternalIP"]),
        value=st.sampled_from(["1", "2"]),
    )
    def somebody_writes_their_own(self, key: str, value: str) -> None:
        """A field that is none of ours."""
        self.node.update("somebody", key, value)
        self.theirs[key] = value
        writes = self.cluster.writes
        self.cluster.converge(self.wanted)
        # Whatever was due before may have been written now; theirs alone causes nothing.
        self.cluster.converge(self.wanted)
        assert self.cluster.writes - writes <= 4

    @rule(
        key=st.sampled_from(["label:cocoonstack.io/pool", "label:cocoonstack.io/snapshot-cpu-class", "capacity:cpu"]),
        value=st.sampled_from([None, "5", "6"]),
        seconds=st.integers(0, 2000),
    )
    def somebody_fights(self, key: str, value: str | None, seconds: int) -> None:
        """A field that is ours."""
        self.cluster.seconds += seconds
        self.node.update("somebody", key, value)
        writes = self.cluster.writes
        self.cluster.converge(self.wanted)
        assert self.cluster.writes - writes <= 4

    @rule(key=st.sampled_from(["label:cocoonstack.io/pool", "capacity:cpu", "allocatable:hugepages-2Mi"]))
    def somebody_shares(self, key: str) -> None:
        """The same value from another manager."""
        if key in self.node.values:
            self.node.co_own("other-applier", key)
            writes = self.cluster.writes
            self.cluster.converge(self.wanted)
            assert self.cluster.writes - writes <= 4

    @invariant()
    def theirs_stays(self) -> None:
        """Nothing of others is touched."""
        assert {key: self.node.values.get(key) for key in self.theirs} == self.theirs

    @invariant()
    def nothing_is_left_to_do(self) -> None:
        """After each converge the plan is empty."""
        assert self.cluster.plan(self.wanted).steps == () or not _is_reachable_state(self.node)

    @invariant()
    def what_is_not_contested_is_in_order(self) -> None:
        """Every field that nobody fights over shows what the agent said."""
        plan = self.cluster.plan(self.wanted)
        fine: Mapping[str, Any] = {
            name: judgement for name, judgement in plan.judgements.items() if judgement.verdict.value == "fine"
        }
        contested = set(plan.judgements) - set(fine)
        assert contested <= {"label:cocoonstack.io/pool", "label:cocoonstack.io/snapshot-cpu-class", "capacity:cpu"}


def _is_reachable_state(node: ModelNode) -> bool:
    return node.conditions["CocoonAgentReachable"].status == "True"


TestManyWriters = ManyWriters.TestCase
TestManyWriters.settings = settings(stateful_step_count=25)
