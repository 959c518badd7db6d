"""What is written on a Node, case by case."""

from dataclasses import replace

import pytest

from controller.nodes.conditions import PRESSURES
from controller.nodes.model import (
    CONTROLLER,
    REGISTERED_BY,
    REGISTRATION,
    ROLE_LABEL,
    TAINT,
    LiveCondition,
    LiveLease,
    LiveNode,
)
from controller.nodes.plan import Mode, NodeSettings
from controller.nodes.report import HostCondition, NodeAddress, NodeReport
from tests.controller.nodes.building import ModelCluster, ModelNode, our_node, owner, plan_for, report, with_class


def registered(given: NodeReport | None = None) -> ModelCluster:
    """A cluster in which the Node has been registered and is in order."""
    cluster = ModelCluster()
    cluster.converge(given or report())
    cluster.writes = 0
    return cluster


def node_of(cluster: ModelCluster) -> ModelNode:
    assert cluster.node is not None
    return cluster.node


class TestRegistration:
    def test_a_missing_node_is_created_without_labels_then_labelled_then_made_ready(self) -> None:
        plan = plan_for(report(provider_id="cocoon://host-1"), None)
        assert [(step.verb, step.path, step.field_manager) for step in plan.steps] == [
            ("create", "/api/v1/nodes", REGISTRATION),
            ("apply", "/api/v1/nodes/host-1", CONTROLLER),
            ("apply", "/api/v1/nodes/host-1/status", CONTROLLER),
        ]
        create, labels, status = plan.steps
        assert create.body == {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "host-1", "annotations": {REGISTERED_BY: CONTROLLER}},
            "spec": {"providerID": "cocoon://host-1", "taints": [TAINT]},
        }
        assert labels.body["metadata"]["labels"] == {**report().labels, "type": "virtual-kubelet"}
        assert "spec" not in labels.body
        assert "spec" not in status.body
        assert {item["type"]: item["status"] for item in status.body["status"]["conditions"]} == {
            "Ready": "True",
            "CocoonAgentReachable": "True",
            **dict.fromkeys(PRESSURES, "False"),
        }
        assert status.requires == {f"label:{key}" for key in labels.body["metadata"]["labels"]}

    def test_the_taint_can_be_turned_off(self) -> None:
        plan = plan_for(report(), None, settings=NodeSettings(taint=False))
        assert "spec" not in plan.steps[0].body

    @pytest.mark.parametrize("reachable", [True, False])
    def test_nothing_is_created_without_a_report_or_for_a_silent_agent(self, reachable: bool) -> None:
        assert plan_for(None, None, reachable=reachable).steps == ()
        assert plan_for(report(), None, reachable=False).steps == ()

    def test_a_second_plan_after_registration_is_empty(self) -> None:
        cluster = ModelCluster()
        plans = cluster.converge(report())
        assert len(plans) == 2
        assert cluster.writes == 3

    def test_a_node_that_is_being_deleted_is_left_alone(self) -> None:
        assert plan_for(report(), our_node(deleting=True)).steps == ()


class TestRestart:
    """F10: a restart that changes nothing writes nothing."""

    def test_of_the_agent(self) -> None:
        cluster = registered()
        cluster.seconds = 5
        cluster.converge(report(instance_id="instance-2", revision=1))
        assert cluster.writes == 0

    def test_of_the_controller(self) -> None:
        cluster = registered()
        cluster.restart_controller()
        cluster.converge(report())
        assert cluster.writes == 0

    def test_other_spellings_of_the_same_amounts_are_no_change(self) -> None:
        cluster = registered()
        node = node_of(cluster)
        node.values["capacity:memory"] = "135093764096"
        node.values["allocatable:cpu"] = "25000m"
        node.values["capacity:ephemeral-storage"] = "4e9"
        cluster.restart_controller()
        cluster.converge(report())
        assert cluster.writes == 0


class TestLabels:
    def test_a_cleared_class_is_taken_off_and_others_labels_stay(self) -> None:
        """F9: cleared in the env file, agent restarted, controller running."""
        cluster = registered(with_class(report(), "gold"))
        node_of(cluster).update("somebody", "label:team", "blue")
        cluster.converge(report(instance_id="instance-2"))
        assert "label:cocoonstack.io/snapshot-cpu-class" not in node_of(cluster).values
        assert node_of(cluster).values["label:team"] == "blue"
        assert cluster.writes == 1

    def test_a_cleared_class_is_taken_off_by_a_controller_that_was_restarted_too(self) -> None:
        """F9: the controller restarted in between."""
        cluster = registered(with_class(report(), "gold"))
        cluster.restart_controller()
        cluster.converge(report(instance_id="instance-2"))
        assert "label:cocoonstack.io/snapshot-cpu-class" not in node_of(cluster).values

    def test_a_class_that_somebody_else_wrote_too_is_removed_with_null(self) -> None:
        cluster = registered(with_class(report(), "gold"))
        node_of(cluster).co_own("somebody", "label:cocoonstack.io/snapshot-cpu-class")
        plans = cluster.converge(report(instance_id="instance-2"))
        assert [step.verb for step in plans[0].steps] == ["apply", "merge-patch"]
        removal = plans[0].steps[1]
        assert removal.body["metadata"]["labels"] == {"cocoonstack.io/snapshot-cpu-class": None}
        assert removal.body["metadata"]["resourceVersion"]
        assert "label:cocoonstack.io/snapshot-cpu-class" not in node_of(cluster).values

    def test_a_class_that_only_somebody_else_wrote_is_removed_with_null_alone(self) -> None:
        cluster = registered()
        node_of(cluster).update("somebody", "label:cocoonstack.io/snapshot-cpu-class", "silver")
        plans = cluster.converge(report())
        assert [step.verb for step in plans[0].steps] == ["merge-patch"]

    def test_a_changed_pool_is_written_with_all_labels(self) -> None:
        cluster = registered()
        labels = {**report().labels, "cocoonstack.io/pool": "fast"}
        plans = cluster.converge(report(instance_id="instance-2", labels=labels))
        assert plans[0].steps[0].body["metadata"]["labels"] == {**labels, "type": "virtual-kubelet"}
        assert cluster.writes == 1


class TestAmounts:
    def test_a_hugepage_size_that_disappears_is_removed(self) -> None:
        """F4"""
        cluster = registered(
            report(
                capacity={**report().capacity, "hugepages-2Mi": "8Gi"},
                allocatable={**report().allocatable, "hugepages-2Mi": "6871947673"},
            )
        )
        cluster.converge(report(revision=2))
        assert not [name for name in node_of(cluster).values if "hugepages" in name]
        assert cluster.writes == 1

    def test_a_hugepage_size_of_another_writer_is_removed_with_null(self) -> None:
        cluster = registered()
        node_of(cluster).update("somebody", "capacity:hugepages-1Gi", "4Gi")
        node_of(cluster).update("somebody", "allocatable:hugepages-1Gi", "4Gi")
        plans = cluster.converge(report())
        assert [step.body["status"] for step in plans[0].steps] == [
            {"allocatable": {"hugepages-1Gi": None}, "capacity": {"hugepages-1Gi": None}}
        ]

    def test_extended_resources_of_others_stay(self) -> None:
        cluster = registered()
        node_of(cluster).update("device-plugin", "capacity:example.com/gpu", "2")
        cluster.converge(report(revision=2, capacity={**report().capacity, "cpu": "16"}))
        assert node_of(cluster).values["capacity:example.com/gpu"] == "2"
        assert node_of(cluster).values["capacity:cpu"] == "16"

    def test_an_allocatable_of_zero_is_a_value(self) -> None:
        cluster = registered()
        cluster.converge(report(revision=2, allocatable={**report().allocatable, "ephemeral-storage": "0"}))
        assert node_of(cluster).values["allocatable:ephemeral-storage"] == "0"

    @pytest.mark.parametrize(
        ("name", "text"), [("cpu", "0"), ("memory", "0Ki"), ("ephemeral-storage", "-1"), ("cpu", "5GB"), ("cpu", None)]
    )
    def test_a_capacity_that_cannot_be_true_is_not_written(self, name: str, text: str | None) -> None:
        """F6: never zero; the last good value stays."""
        cluster = registered()
        capacity = {key: value for key, value in report().capacity.items() if key != name}
        if text is not None:
            capacity[name] = text
        plans = cluster.converge(report(revision=2, capacity=capacity))
        assert (plans[0].refusal, plans[0].mode) == ("InvalidReport", Mode.OWN), "its lease is still kept"
        assert cluster.writes == 0
        assert plan_for(report(capacity=capacity), None).steps == ()


class TestWhoseNode:
    def kubelets(self) -> list[LiveNode]:
        return [
            LiveNode("host-1", owners=(owner("kubelet", "capacity:cpu", subresource="status"),)),
            LiveNode("host-1", node_info={"containerRuntimeVersion": "containerd://2.0"}),
            LiveNode("host-1", labels={ROLE_LABEL: ""}, node_info={"containerRuntimeVersion": "containerd://2.0"}),
            our_node(owners=(owner("kubelet", "capacity:cpu"),)),
        ]

    @pytest.mark.parametrize("place", range(4))
    @pytest.mark.parametrize("adopt", [True, False])
    def test_a_kubelets_node_is_refused_always(self, place: int, adopt: bool) -> None:
        plan = plan_for(report(), self.kubelets()[place], settings=NodeSettings(adopt=adopt))
        assert (plan.steps, plan.refusal) == ((), "KubeletNode")
        assert [event.reason for event in plan.events] == ["KubeletNode"]

    def test_a_virtual_kubelet_may_name_a_container_runtime(self) -> None:
        live = LiveNode(
            "host-1",
            labels={"type": "virtual-kubelet", ROLE_LABEL: ""},
            node_info={"containerRuntimeVersion": "cocoon://1"},
        )
        assert plan_for(report(), live).mode is Mode.EXTERNAL

    def test_a_node_nobody_marked_is_refused_unless_adoption_is_on(self) -> None:
        plan = plan_for(report(), LiveNode("host-1"))
        assert (plan.steps, plan.refusal) == ((), "NotAdopted")
        assert plan_for(report(), LiveNode("host-1"), settings=NodeSettings(adopt=True)).steps

    def test_an_adopted_node_gets_labels_and_amounts_only(self) -> None:
        cluster = ModelCluster(
            ModelNode("host-1", values={f"label:{ROLE_LABEL}": "", "address:InternalIP": "10.0.0.1"})
        )
        plans = cluster.converge(report())
        assert plans[0].mode is Mode.EXTERNAL
        assert [step.verb for step in plans[0].steps] == ["apply", "apply"]
        node = node_of(cluster)
        assert node.values["address:InternalIP"] == "10.0.0.1"
        assert "label:type" not in node.values
        assert not [name for name in node.values if name.startswith("nodeInfo:")]
        assert set(node.conditions) == {"CocoonAgentReachable"}
        assert REGISTERED_BY not in node.annotations

    @pytest.mark.parametrize(
        ("ours", "lifecycle", "holder", "mode"),
        [
            (True, "auto", "", Mode.OWN),
            (True, "auto", CONTROLLER, Mode.OWN),
            (True, "auto", "vk-host-1", Mode.EXTERNAL),
            (True, "own", "vk-host-1", Mode.OWN),
            (True, "external", CONTROLLER, Mode.EXTERNAL),
            (False, "auto", CONTROLLER, Mode.EXTERNAL),
            (False, "own", CONTROLLER, Mode.EXTERNAL),
        ],
    )
    def test_who_keeps_it_alive(self, ours: bool, lifecycle: str, holder: str, mode: Mode) -> None:
        live = our_node() if ours else LiveNode("host-1", labels={ROLE_LABEL: ""})
        settings = NodeSettings(lifecycle=lifecycle)  # type: ignore[arg-type] # parametrized text
        assert plan_for(report(), live, lease=LiveLease(holder), settings=settings).mode is mode

    def test_from_own_to_external_takes_nothing_off(self) -> None:
        cluster = registered()
        before = dict(node_of(cluster).values), dict(node_of(cluster).conditions)
        cluster.lease = LiveLease("vk-host-1")
        cluster.converge(report())
        cluster.converge(report(revision=2, capacity={**report().capacity, "cpu": "16"}))
        node = node_of(cluster)
        assert node.values == {**before[0], "capacity:cpu": "16"}
        assert node.conditions == before[1]

    def test_another_machine_is_refused_until_accepted(self) -> None:
        """F34"""
        cluster = registered()
        other = report(host=replace(report().host, machine_id="machine-new"), instance_id="instance-2")
        plans = cluster.converge(replace(other, capacity={**report().capacity, "cpu": "2"}))
        assert plans[0].refusal == "MachineChanged"
        assert "accept host-1" in plans[0].events[0].note
        assert cluster.writes == 0
        node_of(cluster).annotations["cocoonstack.io/accepted-machine-id"] = "machine-new"
        cluster.converge(other)
        assert node_of(cluster).values["nodeInfo:machineID"] == "machine-new"


class TestProviderId:
    def test_a_different_one_is_told_and_nothing_else_stops(self) -> None:
        cluster = registered(report(provider_id="cocoon://a"))
        plans = cluster.converge(report(provider_id="cocoon://b", capacity={**report().capacity, "cpu": "16"}))
        assert node_of(cluster).provider_id == "cocoon://a"
        assert node_of(cluster).conditions["CocoonProviderIDMismatch"].status == "True"
        assert node_of(cluster).values["capacity:cpu"] == "16"
        assert "ProviderIDMismatch" in {event.reason for event in plans[0].events}
        cluster.converge(report(provider_id="cocoon://a"))
        assert "CocoonProviderIDMismatch" not in node_of(cluster).conditions

    def test_one_configured_later_is_set_once_from_empty(self) -> None:
        cluster = registered()
        plans = cluster.converge(report(provider_id="cocoon://a"))
        assert [step.verb for step in plans[0].steps] == ["merge-patch"]
        assert node_of(cluster).provider_id == "cocoon://a"

    def test_one_no_longer_configured_stays(self) -> None:
        cluster = registered(report(provider_id="cocoon://a"))
        cluster.converge(report())
        assert cluster.writes == 0


class TestAddresses:
    def test_one_of_a_kind_is_sent_and_other_kinds_stay(self) -> None:
        cluster = registered()
        node_of(cluster).update("cloud", "address:ExternalIP", "198.51.100.1")
        two = (*report().addresses, NodeAddress("InternalIP", "192.0.2.11"))
        cluster.converge(report(addresses=two, revision=2))
        assert cluster.writes == 0
        cluster.converge(report(addresses=(NodeAddress("InternalIP", "192.0.2.99"), report().addresses[1])))
        assert node_of(cluster).values["address:InternalIP"] == "192.0.2.99"
        assert node_of(cluster).values["address:ExternalIP"] == "198.51.100.1"


class TestSilence:
    """Unreachable is not dead, and silent is not zero."""

    def test_a_silent_agents_node_says_so_and_keeps_everything(self) -> None:
        cluster = registered(with_class(report(), "gold"))
        node = node_of(cluster)
        before = dict(node.values), dict(node.conditions)
        cluster.seconds = 60
        plans = cluster.converge(with_class(report(), "gold"), reachable=False)
        assert [event.reason for event in plans[0].events] == ["AgentUnreachable"]
        assert node.values == before[0]
        assert node.conditions["CocoonAgentReachable"].status == "False"
        for kind in ("Ready", *PRESSURES):
            assert node.conditions[kind] == before[1][kind]
        assert cluster.writes == 1

    def test_an_agent_never_heard_from_takes_nothing_off(self) -> None:
        """F11: the controller starts while agents do not answer."""
        cluster = registered(with_class(report(), "gold"))
        cluster.restart_controller()
        before = dict(node_of(cluster).values)
        cluster.converge(None, reachable=False)
        assert node_of(cluster).values == before
        assert cluster.writes == 1
        cluster.converge(with_class(report(), "gold"))
        assert node_of(cluster).values == before
        assert node_of(cluster).conditions["CocoonAgentReachable"].status == "True"

    def test_the_reason_may_change_without_a_write(self) -> None:
        cluster = registered()
        cluster.converge(report(), reachable=False)
        assert cluster.writes == 1
        assert cluster.plan(report(), reachable=False, silence_reason="ConnectionRefused").steps == ()
        cluster.restart_controller()
        assert cluster.plan(None, reachable=False, silence_reason="NeverHeardFrom").steps == ()

    def test_copied_values_carry_the_version_they_were_read_at(self) -> None:
        cluster = registered()
        (step,) = cluster.plan(report(), reachable=False).steps
        assert step.body["metadata"]["resourceVersion"] == str(node_of(cluster).version)
        cluster.lease = LiveLease("vk-host-1")
        (step,) = cluster.plan(report(revision=2, capacity={**report().capacity, "cpu": "16"})).steps
        assert step.body["metadata"]["resourceVersion"] == str(node_of(cluster).version)

    def test_what_is_ours_to_say_needs_no_version(self) -> None:
        cluster = registered()
        (step,) = cluster.plan(report(revision=2, capacity={**report().capacity, "cpu": "16"})).steps
        assert "resourceVersion" not in step.body["metadata"]

    def test_a_stranger_that_was_never_written_is_not_written_for_silence(self) -> None:
        live = LiveNode("host-1", labels={ROLE_LABEL: ""})
        assert plan_for(None, live, reachable=False).steps == ()

    def test_unknown_set_by_the_lifecycle_controller_is_kept_while_silent_and_taken_back_on_return(self) -> None:
        cluster = registered()
        node = node_of(cluster)
        cluster.seconds = 31
        cluster.converge(report(), reachable=False)
        cluster.seconds = 45
        unknown = LiveCondition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting.", "t")
        node.set_condition("kube-controller-manager", unknown)
        cluster.converge(report(), reachable=False)
        assert node.conditions["Ready"] == unknown
        cluster.seconds = 60
        cluster.converge(report())
        assert node.conditions["Ready"].status == "True"
        assert node.conditions["Ready"].last_transition_time == "2026-01-01T00:01:00Z"


class TestConditions:
    def test_the_transition_time_moves_only_with_the_status(self) -> None:
        pressed = HostCondition("DiskPressure", "True", "Full", "95 %")
        cluster = registered(report(conditions=(pressed,)))
        cluster.seconds = 100
        cluster.converge(report(revision=2, conditions=(replace(pressed, message="96 %"),)))
        condition = node_of(cluster).conditions["DiskPressure"]
        assert (condition.message, condition.last_transition_time) == ("96 %", "2026-01-01T00:00:00Z")
        cluster.seconds = 200
        cluster.converge(report(revision=3))
        condition = node_of(cluster).conditions["DiskPressure"]
        assert (condition.status, condition.last_transition_time) == ("False", "2026-01-01T00:03:20Z")

    def test_an_agent_may_not_claim_ready(self) -> None:
        cluster = registered(report(conditions=(HostCondition("Ready", "False", "No", "No"),)))
        assert node_of(cluster).conditions["Ready"].status == "True"

    def test_a_condition_of_ours_that_no_longer_holds_is_taken_off(self) -> None:
        over = HostCondition("CocoonMemoryOvercommitted", "True", "HugePages", "by 3Gi")
        cluster = registered(report(conditions=(over,)))
        assert "CocoonMemoryOvercommitted" in node_of(cluster).conditions
        cluster.converge(report(revision=2))
        assert "CocoonMemoryOvercommitted" not in node_of(cluster).conditions

    def test_conditions_of_others_are_never_sent(self) -> None:
        cluster = registered()
        theirs = LiveCondition("NetworkUnavailable", "False", "RouteCreated", "ok", "t")
        node_of(cluster).set_condition("cni", theirs)
        cluster.converge(report(revision=2, capacity={**report().capacity, "cpu": "16"}))
        assert node_of(cluster).conditions["NetworkUnavailable"] == theirs
        owned = node_of(cluster).owned[(CONTROLLER, "Apply", "status")]
        assert "condition:NetworkUnavailable" not in owned
