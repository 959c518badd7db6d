"""Pods as they come from the API, odd ones included, decoded into records and found by node and VM name."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.snapshot_words import Owner
from common.vm_names import is_own_vm_name, pod_vm_name, pods_that_make
from controller.deletion.model import LivePod
from controller.deletion.pod_index import PodIndex
from controller.deletion.pods import DISRUPTED, KEEP, ODD_NAME, ODD_VALUE, TERMINATING, PodRecord

VM = "vm.cocoonstack.io/"
SET = "cocoonset.cocoonstack.io/"
KEEP_KEY, MANAGED_KEY = f"{VM}keep-snapshot-on-delete", f"{SET}managed"


def wire(name: str = "web-0", namespace: str = "shop", node: str = "host-1", **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    """Return a pod as the API sends it; `changes` replace whole sections."""
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "5"}
    pod = {"metadata": metadata | changes.pop("metadata", {}), "spec": {"nodeName": node}, "status": {}}
    return pod | changes


def record(pod: Mapping[str, Any]) -> PodRecord:
    return msgspec.json.decode(json.dumps(pod).encode(), type=PodRecord)


def test_everything_an_owner_needs_is_read() -> None:
    references = [
        {"apiVersion": "v1", "kind": "CocoonSet", "name": "x", "uid": "other-group", "controller": True},
        {"apiVersion": f"{SET}v1", "kind": "CocoonSet", "name": "web", "uid": "set-1",
         "controller": True},
    ]  # fmt: skip
    annotations = {
        f"{VM}name": "vk-shop-special",
        f"{VM}id": "vm-7",
        f"{VM}keep-snapshot-on-delete": "true",
        f"{VM}restore-from-hibernate": "true",
        f"{SET}managed": "true",
    }
    requests = [{"resources": {"requests": {"ephemeral-storage": size}}} for size in ("10Gi", "512Mi")]
    found = record(
        wire(
            metadata={"annotations": annotations, "ownerReferences": references},
            spec={"nodeName": "host-1", "containers": requests, "initContainers": [{}]},
            status={"containerStatuses": [{"state": {"running": {"startedAt": "x"}}}]},
        )
    )
    assert found.owner() == Owner(
        pod_uid="uid-web-0",
        namespace="shop",
        pod_name="web-0",
        vm_name="vk-shop-special",
        managed=True,
        set_name="web",
        set_uid="set-1",
        vm_id="vm-7",
        ephemeral_storage_request_bytes=10 * 2**30 + 512 * 2**20,
        keep_on_delete=True,
    )
    assert found.live() == LivePod("uid-web-0", "shop", "web-0", "host-1", "vk-shop-special", True, True)


@pytest.mark.parametrize(("kind", "controller"), [("CocoonSet", False), ("CocoonSet", None), ("ReplicaSet", True)])
def test_only_a_controlling_set_owns(kind: str, controller: bool | None) -> None:
    reference = {"apiVersion": f"{SET}v1", "kind": kind, "name": "web", "uid": "1", "controller": controller}
    assert record(wire(metadata={"ownerReferences": [reference]})).set_uid == ""


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        pytest.param(f"{VM}name", 7, "vk-shop-web-0", id="a number"),
        pytest.param(f"{VM}name", None, "vk-shop-web-0", id="null"),
        pytest.param(f"{VM}name", {"a": 1}, "vk-shop-web-0", id="an object"),
        pytest.param(f"{VM}name", "", "vk-shop-web-0", id="empty"),
        pytest.param(f"{VM}name", "vk-shop-web-0", "vk-shop-web-0", id="the same"),
        pytest.param(f"{VM}name", "n" * 250_000, "n" * 300, id="absurdly long, cut and still impossible"),
        pytest.param(f"{VM}name", "vk-\u202eweb", "vk-\u202eweb", id="unicode"),
    ],
)
def test_odd_annotations_never_break_the_list(annotation: str, value: object, expected: str) -> None:
    """F31: what is no text counts as unset; nothing a tenant writes makes the list of pods unreadable."""
    found = record(wire(metadata={"annotations": {annotation: value, f"{SET}managed": True, f"{VM}id": []}}))
    assert found.vm_name == expected
    assert not found.owner().managed
    assert found.vm_id == ""


def test_empty_objects_are_pods() -> None:
    """Pods without node, spec or status."""
    empties: list[dict[str, Any]] = [
        {},
        {"metadata": {}},
        {"metadata": {"annotations": None}, "spec": None, "status": None},
    ]
    for pod in empties:
        found = record(pod)
        assert found.node == ""
        assert found.metadata is found


@pytest.mark.parametrize("text", ["", "abc", "-5Gi", "9223372036854775807Gi", 7, None])
def test_odd_requests_count_as_nothing(text: object) -> None:
    containers = [{"resources": {"requests": {"ephemeral-storage": text}}}]
    assert record(wire(spec={"nodeName": "n", "containers": containers})).ephemeral_bytes == 0


@pytest.mark.parametrize(
    ("phase", "counted"), [("Pending", 7), ("Running", 7), ("Unknown", 7), (None, 7), ("Succeeded", 0), ("Failed", 0)]
)
def test_what_a_finished_pod_requested_is_not_counted(phase: str | None, counted: int) -> None:
    """The scheduler takes nothing off for it, so adding its overlay back would sell the same bytes twice."""
    containers = [{"resources": {"requests": {"ephemeral-storage": "7"}}}]
    found = record(wire(spec={"nodeName": "n", "containers": containers}, status={"phase": phase}))
    assert found.owner().ephemeral_storage_request_bytes == counted


def test_eviction_is_told_from_a_late_condition() -> None:
    target = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    live, evicted = record(wire()), record(wire(status=target))
    late = record(wire(metadata=gone, status=target))
    late.follow(live)
    assert late.has(TERMINATING)
    assert not late.has(DISRUPTED)
    after = record(wire(metadata=gone))
    after.follow(evicted)
    assert after.has(DISRUPTED)
    # What a list shows after a gap may have been evicted before its deletion, and is kept.
    missed, last = record(wire(metadata=gone)), record(wire(metadata=gone, status=target))
    missed.follow(live, gapless=False)
    assert not missed.has(DISRUPTED)
    last.follow(missed)
    assert last.has(DISRUPTED)
    other = record(wire(metadata=gone | {"uid": "another"}, status=target))
    other.follow(live)
    assert other.has(DISRUPTED)


def test_index_finds_by_node_and_vm_name() -> None:
    """F29: two pods can make one VM name, and a longer name is another one."""
    items: dict[str, PodRecord] = {}
    index = PodIndex(items.get)
    pods = [
        wire("c", "a-b"),
        wire("b-c", "a", node="host-2"),
        wire("c-0", "a-b"),
        wire("thief", "evil", metadata={"annotations": {f"{VM}name": "vk-a-b-c"}}),
    ]
    for pod in pods:
        found = record(pod)
        items[found.key] = found
        index.take(None, found)
    assert {each.key for each in index.claimants("vk-a-b-c")} == {"a-b/c", "a/b-c", "evil/thief"}
    assert {each.key for each in index.claimants("vk-a-b-c-0")} == {"a-b/c-0"}
    assert {each.key for each in index.on_node("host-1")} == {"a-b/c", "a-b/c-0", "evil/thief"}
    renamed = record(wire("thief", "evil"))
    index.take(items["evil/thief"], renamed)
    items["evil/thief"] = renamed
    index.take(items.pop("a-b/c"), None)
    assert {each.key for each in index.claimants("vk-a-b-c")} == {"a/b-c"}
    index.take(items.pop("a/b-c"), None)
    assert list(index.on_node("host-2")) == []
    assert set(index.nodes()) == {"host-1"}


_labels = st.text(st.sampled_from("ab-"), min_size=1, max_size=6).filter(lambda t: not t.startswith("-"))


@given(_labels, _labels)
def test_every_pod_is_among_those_that_make_its_vm_name(namespace: str, name: str) -> None:
    made = list(pods_that_make(pod_vm_name(namespace, name)))
    assert (namespace, name) in made
    assert all(pod_vm_name(*each) == pod_vm_name(namespace, name) for each in made)


@pytest.mark.parametrize(
    ("vm_name", "foreign"),
    [("vk-shop-web", False), ("vk-shop-web-0", True), ("vk-trusted-x", False), ("debian", True), ("", True)],
)
def test_foreign_names(vm_name: str, foreign: bool) -> None:
    """F31."""
    assert is_own_vm_name("shop", "web", vm_name, ("vk-trusted-", "", "debian")) is not foreign


@pytest.mark.parametrize(
    ("annotations", "odd"),
    [
        ({}, 0),
        ({f"{VM}name": "vk-other-web"}, 0),
        ({f"{VM}name": ""}, 0),
        ({f"{VM}name": "registry.example/base:1.0"}, 0),
        ({KEEP_KEY: "true", MANAGED_KEY: "false"}, 0),
        ({KEEP_KEY: "True"}, ODD_VALUE),
        ({KEEP_KEY: True}, ODD_VALUE),
        ({MANAGED_KEY: ["true"]}, ODD_VALUE),
        ({f"{VM}name": "x" * 100_000}, ODD_NAME),
        ({f"{VM}name": "../x"}, ODD_NAME),
        ({f"{VM}name": "vk-a\u0430-b"}, ODD_NAME),
        ({f"{VM}name": 7, KEEP_KEY: 1}, ODD_NAME | ODD_VALUE),
    ],
)
def test_odd_annotations_are_marked(annotations: dict[str, object], odd: int) -> None:
    """F19, F26: counted as unset where they decide, and never without anybody hearing of it."""
    pod = record(wire(metadata={"annotations": annotations}))
    assert pod.bits & (ODD_NAME | ODD_VALUE) == odd
    assert pod.has(KEEP) == (annotations.get(KEEP_KEY) == "true")
