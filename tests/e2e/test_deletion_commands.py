"""What people are told: why, locate, plan, and a controller that only audits."""

from __future__ import annotations

import json
from collections.abc import Callable

import yaml

from devenv.cocoon_programs import ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.controller_command import run_command
from tests.support.snapshot_calls import state
from tests.support.vm_host import KEEP, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for


def _command(plane: ControlPlane, host: VmHost, *words: str, settings: dict[str, str] | None = None) -> str:
    return run_command(plane.kubeconfig(), [host.agent], *words, settings=settings)


def test_people_are_told(
    vm_host: Callable[..., VmHost],
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    cocoonsets: None,
    kube: KubeApi,
    unique_name: Callable[[str], str],
) -> None:
    host = vm_host()
    controller = controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    name = unique_name("web")
    pod, vm = f"{name}-0", f"vk-default-{name}-0"
    owner = create_set(kube, name, suspend=True, stash=host.node)
    host.create_pod(pod, annotations={KEEP: "true"}, owner=owner)
    host.write(vm)
    wait_for(lambda: state(host.agent.address, vm) == "IN_USE", 30, what="the snapshot being claimed")
    kube.delete(pod_path(pod))
    wait_for(lambda: state(host.agent.address, vm) == "RETAINED", 30, what="the snapshot being kept")
    wait_for(lambda: "SnapshotRetained" in _command(control_plane, host, "why", f"default/{pod}"), 30, what="the event")
    told = _command(control_plane, host, "why", f"default/{pod}")
    assert f"{host.node}: {vm} is RETAINED, kept for SEAT_RELEASE" in told
    assert "it is kept already (row 8)" in told
    (found,) = json.loads(_command(control_plane, host, "locate", vm, "-o", "json"))
    assert (found["node"], found["state"], found["pod"]) == (host.node, "RETAINED", f"default/{pod}")
    assert vm in _command(control_plane, host, "locate", vm)
    assert "has a snapshot of" in _command(control_plane, host, "why", "default/nobody")

    controller.stop()
    kube.delete(set_path(name))
    documents = yaml.safe_load_all(_command(control_plane, host, "plan"))
    (planned,) = [each for each in documents if each.get("kind") == "SnapshotDecision"]
    assert (planned["action"], planned["reason"], planned["row"]) == ("PURGE", "SET_DELETED", 6)
    assert planned["snapshots"] == [vm]
    assert host.has(vm)


def test_audit_decides_and_sends_nothing(
    vm_host: Callable[..., VmHost],
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    cocoonsets: None,
    kube: KubeApi,
    unique_name: Callable[[str], str],
) -> None:
    """A kept copy of a set that is gone: the real controller would purge it, the audit says so."""
    host = vm_host()
    controller = controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    name = unique_name("web")
    pod, vm = f"{name}-0", f"vk-default-{name}-0"
    host.create_pod(pod, annotations={KEEP: "true"}, owner=create_set(kube, name))
    host.write(vm)
    wait_for(lambda: state(host.agent.address, vm) == "IN_USE", 30, what="the snapshot being claimed")
    kube.delete(pod_path(pod))
    wait_for(lambda: state(host.agent.address, vm) == "RETAINED", 30, what="the snapshot being kept")
    controller.stop()
    kube.delete(set_path(name))
    audit = controller_process(host.agent, settings={"COCOON_NODE_CONTROLLER_AUDIT_ONLY": "true"})
    wait_for(lambda: "action=PURGE" in audit.process.log_tail(50), 30, what="the audit deciding")
    assert "audit_only=True" in audit.process.log_tail(50)
    assert state(host.agent.address, vm) == "RETAINED"


def test_release_is_written_for_the_leader(
    vm_host: Callable[..., VmHost],
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    kube: KubeApi,
) -> None:
    host = vm_host()
    controller = controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    lease = controller.settings["COCOON_NODE_CONTROLLER_LEASE_NAME"]
    settings = {"COCOON_NODE_CONTROLLER_LEASE_NAME": lease}
    assert "lets go" in _command(control_plane, host, "plan", "--release", settings=settings)
    wait_for(lambda: "braked purges released" in controller.process.log_tail(50), 30, what="the leader hearing")
