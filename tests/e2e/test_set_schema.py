"""The API's own word on CocoonSets: what the tests' schema admits, refuses and fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from devenv.kube_api import ApiError, KubeApi
from tests.support.vm_host import SETS_API, create_set, set_path

_RELEASE = {"hibernatePolicy": "release"}


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (_RELEASE | {"agent": {"image": "vm", "replicas": 1}}, "main VM only"),
        (_RELEASE | {"toolboxes": [{"name": "tools"}]}, "main VM only"),
        ({"agent": {"replicas": 0}}, "spec.agent.image"),
        ({"agent": {"image": "vm", "mode": "copy"}}, "spec.agent.mode"),
        ({"hibernatePolicy": "keep"}, "spec.hibernatePolicy"),
    ],
)
def test_refused(
    kube: KubeApi, cocoonsets: None, unique_name: Callable[[str], str], spec: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(ApiError, match=problem) as refusal:
        create_set(kube, unique_name("set"), spec=spec)
    assert refusal.value.status == 422


def test_defaults_status_and_edits(kube: KubeApi, cocoonsets: None, unique_name: Callable[[str], str]) -> None:
    name = unique_name("set")
    spec = create_set(kube, name, spec=_RELEASE | {"snapshotCompatibilityClass": "genoa", "toolboxes": []})["spec"]
    assert (spec["nodePool"], spec["snapshotPolicy"], spec["agent"]["mode"], spec["agent"]["replicas"]) == (
        "default",
        "always",
        "clone",
        0,
    )
    status = {"phase": "Suspended", "observedGeneration": 1, "agents": [{"slot": 0, "role": "main"}]}
    written = kube.merge(f"{set_path(name)}/status", {"status": status})
    assert (written["status"], written["metadata"]["generation"]) == (status, 1)
    with pytest.raises(ApiError, match="main VM only"):
        kube.merge(set_path(name), {"spec": {"agent": {"replicas": 2}}})
    with pytest.raises(ApiError, match="cannot be changed"):
        kube.merge(set_path(name), {"spec": {"snapshotCompatibilityClass": "milan"}})


def test_hibernations_are_served(kube: KubeApi, cocoonsets: None, unique_name: Callable[[str], str]) -> None:
    path = f"{SETS_API}/namespaces/default/cocoonhibernations"
    name = unique_name("hibernation")
    made = kube.create(
        path,
        {
            "apiVersion": "cocoonset.cocoonstack.io/v1",
            "kind": "CocoonHibernation",
            "metadata": {"name": name},
            "spec": {"desire": "Hibernate", "podRef": {"name": "web-0"}},
        },
    )
    assert made["spec"]["podRef"]["name"] == "web-0"
    with pytest.raises(ApiError, match="cannot be changed"):
        kube.merge(f"{path}/{name}", {"spec": {"podRef": {"name": "web-1"}}})
    kube.delete(f"{path}/{name}")
