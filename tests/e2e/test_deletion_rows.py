"""Each row of the decision table, end to end: pods are deleted, and what is on the disk tells what was decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devenv.cocoon_programs import ControllerProcess
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.snapshot_calls import retention, state
from tests.support.vm_host import KEEP, VmHost, create_set, pod_path
from tests.support.waiting import wait_for

Hosts = Callable[..., VmHost]
Controllers = Callable[..., ControllerProcess]
Name = Callable[[str], str]
SECONDS = 30.0


@pytest.fixture
def host(vm_host: Hosts, controller_process: Controllers, cocoonsets: None, kube: KubeApi) -> VmHost:
    """A host with a controller that leads and has told the agent its owners."""
    host = vm_host()
    controller_process(host.agent)
    cluster.wait_ready(kube, host.node)
    return host


def _running_pod(host: VmHost, name: str, **options: Any) -> str:
    """A pod whose VM has a snapshot that its agent knows to be claimed; returns the VM's name."""
    host.create_pod(name, **options)
    vm = f"vk-default-{name}"
    host.write(vm)
    wait_for(lambda: state(host.agent.address, vm) == "IN_USE", SECONDS, what=f"{vm} being claimed")
    return vm


def test_teardown_purges(host: VmHost, kube: KubeApi, unique_name: Name) -> None:
    """Row 11. One VM on one node: its ordinary teardown ends in a purge within seconds."""
    name = unique_name("web")
    vm = _running_pod(host, name)
    kube.delete(pod_path(name))
    wait_for(lambda: not host.has(vm), SECONDS, what="the snapshot being purged")


def test_flag_keeps(host: VmHost, kube: KubeApi, unique_name: Name) -> None:
    """Row 8."""
    name = unique_name("web")
    vm = _running_pod(host, name)
    kube.merge(pod_path(name), {"metadata": {"annotations": {KEEP: "true"}}})
    kube.delete(pod_path(name))
    wait_for(lambda: state(host.agent.address, vm) == "RETAINED", SECONDS, what="the snapshot being kept")
    assert retention(host.agent.address, vm) == ("SEAT_RELEASE", None)
    assert host.has(vm)
