"""The main pod of a set: everything of the spec is on it, and a wake differs from a boot in what a wake needs."""

from __future__ import annotations

from typing import Any

import pytest

from controller.seats.pods import main_pod
from controller.seats.wire import PodItem

Json = dict[str, Any]


def a_set(agent: Json | None = None, **spec: object) -> Json:
    metadata = {"name": "web", "namespace": "ns", "uid": "set-uid", "generation": 4}
    return {"metadata": metadata, "spec": {"agent": {"image": "ubuntu:24.04"} | (agent or {})} | spec}


def test_the_smallest_set() -> None:
    assert main_pod(a_set(), restores=False) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-0",
            "namespace": "ns",
            "labels": {
                "cocoonset.cocoonstack.io/name": "web",
                "cocoonset.cocoonstack.io/role": "main",
                "cocoonset.cocoonstack.io/slot": "0",
            },
            "annotations": {
                "vm.cocoonstack.io/name": "vk-ns-web-0",
                "cocoonset.cocoonstack.io/managed": "true",
                "cocoonset.cocoonstack.io/generation": "4",
                "cocoonset.cocoonstack.io/snapshot-policy": "always",
                "cocoonset.cocoonstack.io/image": "ubuntu:24.04",
                "cocoonset.cocoonstack.io/mode": "clone",
                "cocoonset.cocoonstack.io/os": "linux",
            },
            "ownerReferences": [
                {
                    "apiVersion": "cocoonset.cocoonstack.io/v1",
                    "kind": "CocoonSet",
                    "name": "web",
                    "uid": "set-uid",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "agent", "image": "ubuntu:24.04"}],
            "nodeSelector": {"cocoonstack.io/pool": "default"},
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
        },
    }


def test_a_wake_restores_waits_for_its_node_and_prefers_the_one_with_the_copy() -> None:
    pod = main_pod(a_set(), restores=True, preferred_node="a")
    assert pod["metadata"]["annotations"]["vm.cocoonstack.io/restore-from-hibernate"] == "true"
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}
    assert pod["spec"]["affinity"]["nodeAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": {"matchExpressions": [expression]}}
        ]
    }
    waits = [(each["key"], each["effect"], each["tolerationSeconds"]) for each in pod["spec"]["tolerations"][1:]]
    assert waits == [
        ("node.kubernetes.io/not-ready", "NoExecute", 3600),
        ("node.kubernetes.io/unreachable", "NoExecute", 3600),
    ]


def test_a_node_that_the_set_names_is_required_and_wins() -> None:
    affinity = main_pod(a_set(nodeName="b"), restores=True, preferred_node="a")["spec"]["affinity"]["nodeAffinity"]
    assert list(affinity) == ["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == ["b"]


SPECS: list[tuple[Json, list[str], object]] = [
    (a_set(nodePool="gold"), ["spec", "nodeSelector", "cocoonstack.io/pool"], "gold"),
    (a_set(snapshotCompatibilityClass="zen4"), ["spec", "nodeSelector", "cocoonstack.io/snapshot-cpu-class"], "zen4"),
    (a_set({"serviceAccountName": "vm"}), ["spec", "serviceAccountName"], "vm"),
    (a_set({"network": "blue"}), ["metadata", "annotations", "cocoonset.cocoonstack.io/network"], "blue"),
    (a_set({"os": "windows"}), ["metadata", "annotations", "cocoonset.cocoonstack.io/os"], "windows"),
    (a_set({"mode": "run"}), ["metadata", "annotations", "cocoonset.cocoonstack.io/mode"], "run"),
    (a_set({"forcePull": True}), ["metadata", "annotations", "cocoonset.cocoonstack.io/force-pull"], "true"),
    (a_set({"probePort": 22}), ["metadata", "annotations", "vm.cocoonstack.io/probe-port"], "22"),
    (a_set(snapshotPolicy="never"), ["metadata", "annotations", "cocoonset.cocoonstack.io/snapshot-policy"], "never"),
]


@pytest.mark.parametrize(("cocoon_set", "path", "value"), SPECS, ids=[each[1][-1] for each in SPECS])
def test_what_the_spec_says_is_on_the_pod(cocoon_set: Json, path: list[str], value: object) -> None:
    found: Any = main_pod(cocoon_set, restores=False)
    for key in path:
        found = found[key]
    assert found == value


def test_resources_are_requests_and_the_disk_is_counted() -> None:
    agent = {
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}},
        "storage": "20Gi",
        "envFrom": [{"secretRef": {"name": "env"}}],
    }
    (container,) = main_pod(a_set(agent), restores=False)["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"},
        "limits": {"ephemeral-storage": "20Gi"},
    }
    assert container["envFrom"] == agent["envFrom"]
    assert "forcePull" not in agent


def test_a_pod_made_here_is_read_as_the_sets_own() -> None:
    import msgspec

    pod = msgspec.convert(main_pod(a_set(), restores=True), PodItem).read()
    assert (pod.set_uid, pod.vm_name, pod.restores, pod.stamped_generation) == ("set-uid", "vk-ns-web-0", True, 4)
