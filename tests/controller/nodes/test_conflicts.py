"""Somebody else keeps changing what we wrote: taken back at most once in ten minutes, ceded the third time."""

import pytest

from controller.nodes.model import ROLE_LABEL, LiveCondition
from controller.nodes.steps import Step
from tests.controller.nodes.building import ModelCluster, ModelNode, report, with_class

POOL = "label:cocoonstack.io/pool"
CPU = "capacity:cpu"
CLASS = "label:cocoonstack.io/snapshot-cpu-class"


def registered() -> tuple[ModelCluster, ModelNode]:
    cluster = ModelCluster()
    cluster.converge(report())
    cluster.writes = 0
    assert cluster.node is not None
    return cluster, cluster.node


@pytest.mark.parametrize(("name", "theirs"), [(POOL, "stolen"), (POOL, None), (CPU, "64"), (CPU, None)])
def test_a_field_is_taken_back_twice_and_then_ceded(name: str, theirs: str | None) -> None:
    """F12"""
    cluster, node = registered()
    ours = node.values[name]

    node.update("somebody", name, theirs)
    cluster.converge(report())
    assert node.values.get(name) == ours, "the first time at once"

    cluster.seconds = 30
    node.update("somebody", name, theirs)
    plans = cluster.converge(report())
    assert node.values.get(name) == theirs, "not again within ten minutes"
    assert plans[-1].recheck_seconds == 570

    cluster.seconds = 601
    cluster.converge(report())
    assert node.values.get(name) == ours, "again after ten minutes"

    cluster.seconds = 1300
    node.update("somebody", name, theirs)
    plans = cluster.converge(report())
    assert node.values.get(name) == theirs, "the third time within an hour it is theirs"
    assert "FieldConflict" in {event.reason for event in plans[0].events}
    assert name in node.conditions["FieldConflict"].message
    writes = cluster.writes

    for seconds in (1400, 2600, 5000, 90_000):
        cluster.seconds = seconds
        cluster.converge(report())
    assert cluster.writes == writes, "and stays theirs"


def test_other_fields_are_written_while_one_is_contested() -> None:
    cluster, node = registered()
    for seconds, theirs in ((0, "a"), (30, "b")):
        cluster.seconds = seconds
        node.update("somebody", POOL, theirs)
        cluster.converge(report())
    labels = {**report().labels, "kubernetes.io/arch": "arm64"}
    cluster.converge(report(revision=2, labels=labels, capacity={**report().capacity, "cpu": "8"}))
    assert node.values[POOL] == "b"
    assert node.values["label:kubernetes.io/arch"] == "arm64"
    assert node.values[CPU] == "8"


def test_a_ceded_field_is_ours_again_when_it_is_right_or_the_agent_restarts() -> None:
    cluster, node = registered()
    for seconds in (0, 700, 1400):
        cluster.seconds = seconds
        node.update("somebody", CPU, "64")
        cluster.converge(report())
    assert node.values[CPU] == "64"
    node.update("somebody", CPU, "32")
    cluster.converge(report())
    assert "FieldConflict" not in node.conditions
    node.update("somebody", CPU, "64")
    cluster.converge(report())
    assert node.values[CPU] == "64", "within the hour it is ceded at once"
    cluster.memory = cluster.memory.forget_conflicts()
    cluster.converge(report(instance_id="instance-2"))
    assert node.values[CPU] == "32"


def test_a_restarted_controller_keeps_ceding() -> None:
    cluster, node = registered()
    for seconds in (0, 700, 1400):
        cluster.seconds = seconds
        node.update("somebody", CPU, "64")
        cluster.converge(report())
    cluster.restart_controller()
    writes = cluster.writes
    cluster.converge(report())
    assert cluster.writes == writes
    assert node.values[CPU] == "64"


def test_our_own_change_of_mind_is_no_conflict() -> None:
    cluster, node = registered()
    for revision in range(2, 12):
        cluster.seconds += 1
        cluster.converge(report(revision=revision, capacity={**report().capacity, "cpu": str(revision)}))
        assert node.values[CPU] == str(revision)
    assert "FieldConflict" not in node.conditions


def test_a_label_that_should_be_absent_and_keeps_coming_back_is_ceded() -> None:
    cluster = ModelCluster()
    cluster.converge(with_class(report(), "gold"))
    cluster.converge(report())
    node = cluster.node
    assert node is not None
    for seconds in (0, 700, 1400):
        cluster.seconds = seconds
        node.update("somebody", CLASS, "silver")
        cluster.converge(report())
    assert node.values[CLASS] == "silver"
    assert CLASS in node.conditions["FieldConflict"].message


def force_pool(node: ModelNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission rule that gives every Node the pool it likes; the field stays its manager's."""
    apply = ModelNode._apply

    def apply_and_force(self: ModelNode, step: Step, sub: str) -> None:
        apply(self, step, sub)
        if POOL in self.values:
            self.values[POOL] = "forced"

    monkeypatch.setattr(ModelNode, "_apply", apply_and_force)
    node.values[POOL] = "forced"
    node.version += 1


def test_an_admission_rule_that_undoes_our_write_is_met_like_a_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """F12: what was sent and is not there counts as lost, so that no loop of writes begins."""
    cluster, node = registered()
    cluster.restart_controller()
    force_pool(node, monkeypatch)
    for seconds in (0, 1, 700, 1400, 2100, 90_000):
        cluster.seconds = seconds
        cluster.converge(report())
    assert node.values[POOL] == "forced"
    assert POOL in node.conditions["FieldConflict"].message
    assert cluster.writes <= 4


def test_a_field_that_waits_is_not_taken_off_by_other_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, node = registered()
    force_pool(node, monkeypatch)
    cluster.converge(report())
    labels = {**report().labels, "kubernetes.io/arch": "arm64"}
    cluster.seconds = 5
    cluster.converge(report(revision=2, labels=labels))
    assert node.values["label:kubernetes.io/arch"] == "arm64"
    assert node.values[POOL] == "forced"


def test_an_adopted_node_whose_own_writer_publishes_other_amounts_ends_without_a_war() -> None:
    """F12"""
    node = ModelNode("host-1", values={f"label:{ROLE_LABEL}": "", CPU: "2"})
    cluster = ModelCluster(node)
    for minute in range(120):
        cluster.seconds = minute * 60.0
        node.update("virtual-kubelet", CPU, "2")
        cluster.converge(report())
    assert node.values[CPU] == "2"
    assert "FieldConflict" in node.conditions
    assert cluster.writes <= 8


class TestConditionsAreNotFoughtOver:
    def test_a_status_set_by_somebody_stays(self) -> None:
        cluster, node = registered()
        node.set_condition("somebody", LiveCondition("Ready", "False", "Maintenance", "by hand", "t"))
        cluster.converge(report())
        assert cluster.writes == 0
        cluster.converge(report(revision=2, capacity={**report().capacity, "cpu": "16"}))
        assert node.conditions["Ready"].reason == "Maintenance"

    def test_unknown_is_taken_back_at_most_once_a_minute(self) -> None:
        cluster, node = registered()
        unknown = LiveCondition("Ready", "Unknown", "NodeStatusUnknown", "", "t")
        cluster.seconds = 100
        node.set_condition("kube-controller-manager", unknown)
        cluster.converge(report())
        assert node.conditions["Ready"].status == "True"
        cluster.seconds = 110
        node.set_condition("kube-controller-manager", unknown)
        plans = cluster.converge(report())
        assert node.conditions["Ready"].status == "Unknown"
        assert plans[-1].recheck_seconds == 50
        cluster.seconds = 161
        cluster.converge(report())
        assert node.conditions["Ready"].status == "True"

    def test_one_that_keeps_vanishing_is_written_every_ten_minutes(self) -> None:
        cluster, node = registered()
        for minute in range(60):
            cluster.seconds = minute * 60.0
            node.conditions.pop("CocoonAgentReachable", None)
            node.version += 1
            cluster.converge(report())
        assert cluster.writes <= 7
