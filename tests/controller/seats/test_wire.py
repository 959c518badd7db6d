"""Objects as people and runtimes write them: what is odd counts as unset and makes nothing unreadable."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.seats.model import Lifecycle, Phase
from controller.seats.wire import HibernationItem, PodItem, SetItem

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def a_pod(annotations: object = None, **status: object) -> PodItem:
    body = {"metadata": {"name": "web-0", "namespace": "ns", "annotations": annotations}, "status": status}
    return msgspec.json.decode(msgspec.json.encode(body), type=PodItem)


@given(json_values, json_values)
def test_any_spec_and_status_of_a_set_can_be_read(spec: object, status: object) -> None:
    body = {"metadata": {"name": "web", "namespace": "ns"}, "spec": spec, "status": status}
    found = msgspec.json.decode(msgspec.json.encode(body), type=SetItem).read()
    assert (found.namespace, found.name) == ("ns", "web")


@given(json_values, json_values)
def test_any_hibernation_can_be_read(spec: object, status: object) -> None:
    body = {"metadata": {"name": "h", "namespace": "ns"}, "spec": spec, "status": status}
    assert isinstance(msgspec.json.decode(msgspec.json.encode(body), type=HibernationItem).pod_name, str)


@pytest.mark.parametrize("value", ["True", "1", "yes", "", True, 1, None])
def test_true_is_the_only_true(value: object) -> None:
    assert not a_pod({"vm.cocoonstack.io/hibernate": value}).read().hibernates


@pytest.mark.parametrize(
    ("text", "number"), [("3", 3), ("-3", -1), ("3.0", -1), ("", -1), ("٣", -1), (3, -1), ("9" * 30, -1)]
)
def test_generations_are_whole_numbers(text: object, number: int) -> None:
    assert a_pod({"vm.cocoonstack.io/lifecycle-observed-generation": text}).read().observed_generation == number


def test_words_that_nobody_knows_are_no_state() -> None:
    assert a_pod({"vm.cocoonstack.io/lifecycle-state": "Hibernated"}).read().lifecycle is Lifecycle.OTHER


def test_a_pod_that_fits_nowhere_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert a_pod(conditions=[condition]).read().unschedulable == "0/3 nodes"
    gated = condition | {"reason": "SchedulingGated"}
    assert a_pod(conditions=[gated]).read().unschedulable == ""


def test_only_the_controlling_set_owns_a_pod() -> None:
    reference = {"apiVersion": "cocoonset.cocoonstack.io/v1", "kind": "CocoonSet", "name": "web", "uid": "u"}
    for change, owner in (({"controller": True}, ("web", "u")), ({}, ("", "")), ({"controller": False}, ("", ""))):
        body = {"metadata": {"name": "web-0", "ownerReferences": [reference | change]}}
        assert msgspec.convert(body, PodItem).owner() == owner


@pytest.mark.parametrize(
    ("spec", "status", "name"),
    [
        ({"desire": "Hibernate", "podRef": {"name": "web-0"}}, {}, "web-0"),
        ({"desire": "Wake", "podRef": {"name": "web-0"}}, {"phase": "Waking"}, "web-0"),
        ({"desire": "Wake", "podRef": {"name": "web-0"}}, {"phase": "Active"}, ""),
        ({"podRef": {"name": 7}}, {}, ""),
    ],
)
def test_which_pod_a_hibernation_targets(spec: object, status: object, name: str) -> None:
    body = {"metadata": {"name": "h", "namespace": "ns"}, "spec": spec, "status": status}
    assert msgspec.convert(body, HibernationItem).pod_name == name


@pytest.mark.parametrize(("word", "phase"), [(None, Phase.NONE), ("Waking", Phase.WAKING), ("Scaling", Phase.OTHER)])
def test_phases(word: object, phase: Phase) -> None:
    body = {"metadata": {"name": "web"}, "status": {"phase": word}}
    assert msgspec.convert(body, SetItem).read().phase is phase
