"""The brake, end to end: a hundred purges of deletions nobody saw, then a person."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from devenv.cocoon_programs import ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.controller_command import run_command
from tests.support.metrics import metric
from tests.support.snapshot_calls import snapshots
from tests.support.vm_host import VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

_ALLOWED = 100
_MORE = 5
_IN_USE = 3


@pytest.mark.timeout(240)
def test_what_nobody_saw_waits_for_a_person(
    vm_host: Callable[..., VmHost],
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    cocoonsets: None,
    kube: KubeApi,
    unique_name: Callable[[str], str],
) -> None:
    """F16: a set of many pods is deleted with them while no controller runs."""
    host = vm_host()
    controller = controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    name = unique_name("web")
    owner = create_set(kube, name)
    pods = [f"{name}-{number}" for number in range(_ALLOWED + _MORE)]
    for pod in pods:
        host.create_pod(pod, owner=owner, grace_seconds=0)
        host.write(f"vk-default-{pod}")

    def claimed() -> bool:
        return sum(each.state == _IN_USE for each in snapshots(host.agent.address).values()) == len(pods)

    wait_for(claimed, 60, what="all snapshots being claimed")
    controller.kill()
    for pod in pods:
        kube.discard(pod_path(pod), gracePeriodSeconds=0)
    kube.discard(set_path(name))
    controller.start()

    def braked() -> bool:
        return metric(controller.http_address, "cocoon_node_deletion_braked") == _MORE

    wait_for(braked, 60, what="the brake holding the rest")
    left = sorted(snapshots(host.agent.address))
    assert len(left) == _MORE
    pod = left[0].removeprefix("vk-default-")
    wait_for(lambda: "SnapshotPurgeBraked" in cluster.event_reasons(kube, pod), 30, what="the pod's event")
    wait_for(lambda: "SnapshotPurgeBraked" in cluster.event_reasons(kube, host.node), 30, what="the Node's event")
    lease = {"COCOON_NODE_CONTROLLER_LEASE_NAME": controller.settings["COCOON_NODE_CONTROLLER_LEASE_NAME"]}

    def command(*words: str) -> str:
        return run_command(control_plane.kubeconfig(), [host.agent], *words, settings=lease)

    decisions = [
        each for each in yaml.safe_load_all(command("plan")) if each and each.get("kind") == "SnapshotDecision"
    ]
    assert [(each["row"], each["braked"]) for each in decisions] == [(12, True)] * _MORE
    assert sorted(each["vm"] for each in decisions) == left
    assert "SnapshotPurgeBraked" in command("why", f"default/{pod}")

    command("plan", "--release")
    wait_for(lambda: not snapshots(host.agent.address), 60, what="the released ones being purged")
    wait_for(lambda: not metric(controller.http_address, "cocoon_node_deletion_braked"), 30, what="nothing being held")
