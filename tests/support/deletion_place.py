"""A control plane of a test's own with two VM hosts, and sets that are suspended or deleted there in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devenv.cocoon_programs import ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import Json, KubeApi, UnreachableError
from tests.support.controller_command import run_command
from tests.support.snapshot_calls import snapshots
from tests.support.vm_host import KEEP, STASH, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

QUICK_LEASE = {
    "COCOON_NODE_CONTROLLER_LEASE_DURATION_SECONDS": "2",
    "COCOON_NODE_CONTROLLER_RENEW_DEADLINE_SECONDS": "1.5",
    "COCOON_NODE_CONTROLLER_RETRY_PERIOD_SECONDS": "0.3",
}
LEADER_LEASES = "/apis/coordination.k8s.io/v1/namespaces/cocoon-system/leases"
_LEASE_NAME = "COCOON_NODE_CONTROLLER_LEASE_NAME"
_CLAIMED = 3

Made = Sequence[tuple[VmHost, Json]]


@dataclass
class Place:
    """The control plane, an administrator's client, and the hosts."""

    plane: ControlPlane
    kube: KubeApi
    hosts: list[VmHost]

    def controller(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        agents: Mapping[str, str] | None = None,
        *,
        quick_lease: bool = True,
    ) -> ControllerProcess:
        """Return a controller that was not started; `agents` are other ways to hosts' agents by node name."""
        endpoints = [f"{host.node}={(agents or {}).get(host.node, host.agent.address)}" for host in self.hosts]
        own = {"COCOON_NODE_CONTROLLER_LOG_FORMAT": "json"} | (QUICK_LEASE if quick_lease else {})
        return ControllerProcess(directory, self.plane.kubeconfig("controller"), endpoints, own | dict(settings or {}))

    def make(self, count: int) -> Made:
        """Make sets of one pod with one snapshot, on the hosts in turn, all of them known to be claimed."""
        made = [make(self.kube, self.hosts[n % len(self.hosts)], f"set-{n}") for n in range(count)]
        wait_for(lambda: all_claimed(self.hosts, count), 120, what="all snapshots being claimed")
        return made

    def release_braked(self, controller: ControllerProcess) -> None:
        """Say as a person does that what the brake holds may go."""
        name = {_LEASE_NAME: controller.settings[_LEASE_NAME]}
        agents = [host.agent for host in self.hosts]
        assert "lets go" in run_command(self.plane.kubeconfig(), agents, "plan", "--release", settings=name)


def make(kube: KubeApi, host: VmHost, name: str) -> tuple[VmHost, Json]:
    """Make a set with one pod, which is deleted without a grace period, and its snapshot."""
    owner = create_set(kube, name)
    host.create_pod(f"{name}-0", owner=owner, grace_seconds=0)
    host.write(f"vk-default-{name}-0")
    return host, owner


def all_claimed(hosts: list[VmHost], count: int) -> bool:
    """Whether the agents know that all snapshots are claimed."""
    in_use = sum(each.state == _CLAIMED for host in hosts for each in snapshots(host.agent.address).values())
    return in_use == count


def end(kube: KubeApi, host: VmHost, owner: Json, *, keep: bool) -> None:
    """Suspend and free the seat as the contract orders it, or delete set and pod."""
    name = owner["metadata"]["name"]
    steps: list[Callable[[], object]]
    if keep:
        suspended = {"metadata": {"annotations": {STASH: host.node}}, "spec": {"suspend": True}}
        steps = [
            lambda: kube.merge(set_path(name), suspended),
            lambda: kube.merge(pod_path(f"{name}-0"), {"metadata": {"annotations": {KEEP: "true"}}}),
            lambda: kube.discard(pod_path(f"{name}-0")),
        ]
    else:
        steps = [lambda: kube.discard(set_path(name)), lambda: kube.discard(pod_path(f"{name}-0"))]
    for step in steps:
        _persistently(step)


def is_right(made: Made) -> bool:
    """Whether every second snapshot, the first one included, is kept and the others are gone."""
    for number, (host, owner) in enumerate(made):
        vm = f"vk-default-{owner['metadata']['name']}-0"
        if number % 2 == 0:
            # Never waited for: what is gone once does not come back.
            assert host.has(vm), f"{vm} carried the flag and is gone"
        elif host.has(vm):
            return False
    found = {address: snapshots(address) for address in {host.agent.address for host, _ in made}}
    return all(
        found[host.agent.address][f"vk-default-{owner['metadata']['name']}-0"].HasField("retention")
        for host, owner in made[::2]
    )


def _persistently(step: Callable[[], object]) -> None:
    """Repeat a request while the API server is away."""

    def attempt() -> bool:
        step()
        return True

    wait_for(attempt, 120, what="the API taking a request", ignoring=(UnreachableError,))
