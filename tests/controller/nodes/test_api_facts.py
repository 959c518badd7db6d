"""What the plan takes for granted about the API server, seen on the real one."""

from typing import Any

import pytest

from controller.nodes.model import CONTROLLER, REGISTRATION
from devenv.kube_api import ApiError, KubeApi
from tests.controller.nodes.conftest import NODES, find

KEY = "cocoonstack.io/snapshot-cpu-class"


def body(name: str, **parts: Any) -> dict[str, Any]:  # noqa: ANN401 - any part of a Node
    metadata = {"name": name} | parts.pop("metadata", {})
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **parts}


def create(kube: KubeApi, name: str, **parts: Any) -> None:  # noqa: ANN401 - the same
    kube.create(NODES, body(name, **parts), fieldManager=REGISTRATION)


def apply_labels(kube: KubeApi, name: str, labels: dict[str, str], manager: str = CONTROLLER) -> None:
    kube.apply(f"{NODES}/{name}", body(name, metadata={"labels": labels}), manager=manager)


def apply_status(kube: KubeApi, name: str, status: dict[str, Any]) -> None:
    kube.apply(f"{NODES}/{name}/status", body(name, status=status), manager=CONTROLLER)


def test_un_applying_takes_off_what_only_we_wrote(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    apply_labels(kube, node_name, {KEY: "gold", "cocoonstack.io/pool": "default"})
    apply_labels(kube, node_name, {"cocoonstack.io/pool": "default"})
    assert KEY not in find(kube, node_name)["metadata"]["labels"]


def test_un_applying_leaves_what_somebody_else_wrote_too(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    apply_labels(kube, node_name, {KEY: "gold"})
    apply_labels(kube, node_name, {KEY: "gold"}, manager="somebody")
    apply_labels(kube, node_name, {})
    assert find(kube, node_name)["metadata"]["labels"][KEY] == "gold"
    version = find(kube, node_name)["metadata"]["resourceVersion"]
    kube.merge(f"{NODES}/{node_name}", {"metadata": {"resourceVersion": version, "labels": {KEY: None}}})
    assert KEY not in find(kube, node_name)["metadata"].get("labels", {})


def test_labels_of_the_post_cannot_be_un_applied(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name, metadata={"labels": {KEY: "gold"}})
    apply_labels(kube, node_name, {KEY: "gold"})
    apply_labels(kube, node_name, {})
    assert find(kube, node_name)["metadata"]["labels"][KEY] == "gold"


def test_two_addresses_of_a_kind_in_an_apply_are_an_internal_error(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    two = [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "192.0.2.2"}]
    with pytest.raises(ApiError, match="duplicate entries") as refused:
        apply_status(kube, node_name, {"addresses": two})
    assert refused.value.status == 500


def test_an_apply_beside_somebodys_two_addresses_works(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    two = [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "InternalIP", "address": "192.0.2.2"}]
    kube.merge(f"{NODES}/{node_name}/status", {"status": {"addresses": two}})
    apply_status(kube, node_name, {"capacity": {"cpu": "4"}})
    assert find(kube, node_name)["status"]["addresses"] == two
    apply_status(kube, node_name, {"capacity": {"cpu": "4"}, "addresses": two[1:]})
    assert find(kube, node_name)["status"]["addresses"] == two[1:]


def test_a_provider_id_left_out_of_a_later_apply_is_refused(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    kube.apply(f"{NODES}/{node_name}", body(node_name, spec={"providerID": "cocoon://a"}), manager=CONTROLLER)
    with pytest.raises(ApiError, match="may not change providerID") as refused:
        apply_labels(kube, node_name, {KEY: "gold"})
    assert refused.value.status == 422


def test_a_provider_id_can_be_set_once_from_empty(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    kube.merge(f"{NODES}/{node_name}", {"spec": {"providerID": "cocoon://a"}})
    with pytest.raises(ApiError, match="may not change providerID"):
        kube.merge(f"{NODES}/{node_name}", {"spec": {"providerID": "cocoon://b"}})


def test_an_apply_of_taints_would_wipe_everybodys(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name, spec={"taints": [{"key": "theirs", "effect": "NoSchedule"}]})
    ours = [{"key": "ours", "effect": "NoSchedule"}]
    kube.apply(f"{NODES}/{node_name}", body(node_name, spec={"taints": ours}), manager=CONTROLLER)
    assert "theirs" not in {taint["key"] for taint in find(kube, node_name)["spec"]["taints"]}


def test_another_spelling_is_kept_and_counts_as_a_change(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    apply_status(kube, node_name, {"capacity": {"memory": "1Gi"}})
    before = find(kube, node_name)["metadata"]["resourceVersion"]
    apply_status(kube, node_name, {"capacity": {"memory": "1073741824"}})
    node = find(kube, node_name)
    assert node["status"]["capacity"]["memory"] == "1073741824"
    assert node["metadata"]["resourceVersion"] != before


def test_an_apply_creates_a_missing_node_unless_it_names_a_uid(kube: KubeApi, node_name: str) -> None:
    named = body(node_name, metadata={"uid": "11111111-2222-3333-4444-555555555555", "labels": {KEY: "gold"}})
    with pytest.raises(ApiError) as refused:
        kube.apply(f"{NODES}/{node_name}", named, manager=CONTROLLER)
    assert refused.value.status == 409
    assert not find(kube, node_name)
    apply_labels(kube, node_name, {KEY: "gold"})
    assert find(kube, node_name)
    with pytest.raises(ApiError) as changed:
        kube.apply(f"{NODES}/{node_name}", named, manager=CONTROLLER)
    assert changed.value.status == 422


def test_managed_fields_can_be_given_up_without_changing_a_value(kube: KubeApi, node_name: str) -> None:
    create(kube, node_name)
    apply_status(kube, node_name, {"capacity": {"cpu": "4"}})
    entries = find(kube, node_name)["metadata"]["managedFields"]
    place = next(at for at, entry in enumerate(entries) if entry["manager"] == CONTROLLER)
    kube.patch_json(f"{NODES}/{node_name}", [{"op": "remove", "path": f"/metadata/managedFields/{place}"}])
    node = find(kube, node_name)
    assert CONTROLLER not in {entry["manager"] for entry in node["metadata"].get("managedFields", ())}
    assert node["status"]["capacity"] == {"cpu": "4"}


def test_a_node_is_created_with_the_not_ready_taint(kube: KubeApi, node_name: str) -> None:
    node = kube.create(NODES, body(node_name), fieldManager=REGISTRATION)
    assert {taint["key"] for taint in node["spec"]["taints"]} == {"node.kubernetes.io/not-ready"}
