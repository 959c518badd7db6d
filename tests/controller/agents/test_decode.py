"""What of an agent's words is taken: a whole report or none of it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cocoonstack.node.v1 import node_resources_pb2 as pb
from controller.agents.decode import IdentityMismatchError, ReportError, decode_message, decode_report
from tests.support.fake_agent import sample_report

GOOD_PAYLOAD = pb.WatchNodeResourcesResponse(report=sample_report("node-a")).SerializeToString(deterministic=True)

Spoil = Callable[[pb.NodeResourcesReport], object]


def test_whole_report() -> None:
    report = sample_report("node-a")
    report.capacity["hugepages-1Gi"] = report.allocatable["hugepages-1Gi"] = "4Gi"
    report.conditions.add(
        type="CocoonMemoryOvercommitted", status=pb.CONDITION_STATUS_TRUE, reason="HugePages", message="by 1Gi"
    )
    report.resources.add(
        name="cpu",
        source=pb.RESOURCE_SOURCE_OVERRIDDEN,
        origin="VK_NODE_CPU",
        raw_value=32000,
        adjustments=[pb.Adjustment(reason="RESERVE", value=-6400)],
        capacity_value=32000,
        allocatable_value=25000,
    )
    taken = decode_report(report, "node-a")
    assert taken.capacity["hugepages-1Gi"] == "4Gi"
    assert taken.labels["kubernetes.io/hostname"] == "node-a"
    assert taken.host.machine_id == "machine-node-a"
    assert [(a.type, a.address) for a in taken.addresses] == [("InternalIP", "192.0.2.10"), ("Hostname", "node-a")]
    assert (taken.conditions[0].status, taken.conditions[0].reason) == ("True", "HugePages")
    assert (taken.resources[0].source, taken.resources[0].adjustments[0].value) == ("OVERRIDDEN", -6400)
    assert taken.observed_at is not None
    assert taken.observed_at.utcoffset() is not None


def test_the_longest_path_an_agent_takes_is_an_origin() -> None:
    report = sample_report("node-a")
    origin = "statvfs /" + "x" * 4094
    report.resources.add(name="ephemeral-storage", origin=origin)
    assert decode_report(report, "node-a").resources[0].origin == origin


def test_heartbeat_is_no_report() -> None:
    assert decode_message(pb.WatchNodeResourcesResponse().SerializeToString(), "node-a") is None


def test_unknown_fields_and_enum_values_are_tolerated() -> None:
    """A newer agent may say more than this controller knows."""
    report = sample_report("node-a")
    report.conditions.add(type="CocoonNew", status=9)
    report.resources.add(name="cpu", source=7)
    report.addresses.add(type="ExternalDNS", address="whatever")
    unknown_field = b"\xf2\x3f\x03abc"  # number 1022, three bytes
    payload = pb.WatchNodeResourcesResponse(report=report).SerializeToString()
    taken = decode_message(payload + unknown_field, "node-a")
    assert taken is not None
    assert taken.conditions[0].status == "Unknown"
    assert len(taken.addresses) == 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda r: setattr(r, "node_name", ""), "node_name"),
        (lambda r: setattr(r, "node_name", "../x"), "node_name"),
        (lambda r: setattr(r, "node_name", "a" * 64), "node_name"),
        (lambda r: setattr(r, "instance_id", ""), "instance_id"),
        (lambda r: setattr(r, "reserve_percent", 101), "reserve_percent 101"),
        (lambda r: r.capacity.update(cpu="0"), "capacity[cpu] is zero"),
        (lambda r: r.capacity.update(cpu="-1"), "capacity[cpu] '-1' must not be negative"),
        (lambda r: r.capacity.update(memory="5GB"), "capacity[memory] '5GB'"),
        (lambda r: r.capacity.update(memory="1" * 100000), "capacity[memory]"),
        (lambda r: r.allocatable.update(memory="NaN"), "allocatable[memory]"),
        (lambda r: r.allocatable.update(cpu="33"), "above the capacity"),
        (lambda r: (r.capacity.pop("pods"), r.allocatable.pop("pods")), "capacity has no pods"),
        (lambda r: r.allocatable.pop("memory"), "differ in their resources: 'memory'"),
        (lambda r: r.allocatable.update(gpu="1"), "differ in their resources: 'gpu'"),
        (lambda r: (r.capacity.update({"a b": "1"}), r.allocatable.update({"a b": "1"})), "is not a resource name"),
        (lambda r: r.labels.update({"cocoonstack.io/x": "a b"}), "is not a label value"),
        (lambda r: r.labels.update({"cocoonstack.io/x": "a" * 64}), "is not a label value"),
        (lambda r: r.labels.update({"bad key": "x"}), "is not a label key"),
        (lambda r: r.labels.update({"topology.kubernetes.io/zone": "z"}), "not a key an agent may manage"),
        (lambda r: r.managed_label_keys.append("team.example/owner"), "not a key an agent may manage"),
        (lambda r: r.managed_label_keys.append("evilcocoonstack.io/x"), "not a key an agent may manage"),
        (lambda r: r.managed_label_keys.append("type"), "not a key an agent may manage"),
        (lambda r: r.labels.update({"kubernetes.io/hostname": "node-b"}), "another node's name"),
        (lambda r: r.managed_label_keys.extend(f"cocoonstack.io/{n}" for n in range(99)), "managed_label_keys has"),
        (lambda r: r.addresses.add(type="InternalIP", address="192.0.2.1"), "more than one InternalIP"),
        (lambda r: setattr(r.addresses[0], "address", "not an address"), "InternalIP"),
        (lambda r: setattr(r.addresses[1], "address", "UPPER"), "Hostname"),
        (lambda r: r.conditions.add(type="a b"), "is not a condition type"),
        (lambda r: r.conditions.extend([pb.Condition(type="A"), pb.Condition(type="A")]), "A is there twice"),
        (lambda r: r.conditions.add(type="A", reason="two words"), "conditions[A].reason"),
        (lambda r: r.conditions.add(type="A", message="x" * 40000), "conditions[A].message has 40000 characters"),
        (lambda r: setattr(r.host, "os_image", "x" * 2000), "host.os_image has 2000 characters"),
        (lambda r: setattr(r, "provider_id", "x" * 2000), "provider_id has 2000"),
        (lambda r: setattr(r.observe_time, "seconds", 2**62), "observe_time is not a time"),
        (lambda r: [r.resources.add(name=str(n)) for n in range(65)], "resources has 65 entries"),
    ],
)
def test_refused_with_field_and_value(spoil: Spoil, words: str) -> None:
    """F6, F26: hostile or broken reports name what is wrong, cut to a readable length."""
    report = sample_report("node-a")
    spoil(report)
    with pytest.raises(ReportError) as caught:
        decode_report(report, "" if "node_name" in words else "node-a")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert caught.value.reason == "InvalidReport"


def test_another_name_is_a_mismatch() -> None:
    """F34: whatever else the report says, it is about another node."""
    with pytest.raises(IdentityMismatchError, match="'node-a' reports as 'node-b'"):
        decode_report(sample_report("node-b"), "node-a")


def test_full_disk_is_a_value() -> None:
    report = sample_report("node-a")
    report.allocatable["ephemeral-storage"] = "0"
    assert decode_report(report, "node-a").allocatable["ephemeral-storage"] == "0"


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_a_heartbeat_or_refused(payload: bytes) -> None:
    try:
        report = decode_message(payload, "node-a")
    except ReportError:
        return
    assert report is None or report.node_name == "node-a"


@given(st.data())
def test_any_damage_is_a_report_or_refused(data: st.DataObject) -> None:
    payload = bytearray(GOOD_PAYLOAD)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        report = decode_message(bytes(payload), "node-a")
    except ReportError:
        return
    if report is not None:
        assert report.node_name == "node-a"
        assert {"cpu", "memory", "ephemeral-storage", "pods"} <= report.capacity.keys()
