"""Pods are deleted at a steady rate for half an hour: nothing is lost, nothing is left, and no memory grows.

`COCOON_NODE_TEST_SOAK_SECONDS` makes it shorter or longer than its 1,800 seconds. Controller and agents remember what
they did for a quarter of an hour, so memory is judged in runs of at least half an hour; shorter ones show it only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.deletion_cluster import write_kubeconfig
from benchmarks.deletion_pods import names
from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.vm_snapshots import write_snapshot
from tests.support import cluster
from tests.support.deletion_place import Place
from tests.support.deletion_soak import Memory, Pods, Turnover
from tests.support.metrics import metric
from tests.support.soak_api import SoakApi
from tests.support.vm_host import KEEP, VmHost, pod_path
from tests.support.waiting import wait_for

_JUDGED_SECONDS = 1800.0
_SECONDS = float(os.environ.get("COCOON_NODE_TEST_SOAK_SECONDS", str(_JUDGED_SECONDS)))
# Resident memory moves by so much without anything being kept: threads' arenas, the page size, a longer page of a list.
_ALLOWED_GROWTH = 1.05
# From one pod of a name to the next, half of it with and half of it without a pod.
_ROUND_SECONDS = 40.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(_SECONDS + 600)]


class RealPods:
    """On the real API server, on two hosts with a runtime."""

    def __init__(self, place: Place) -> None:
        self._kube, self._hosts = place.kube, place.hosts

    def create(self, number: int) -> None:
        """See Pods."""
        self._host(number).create_pod(f"soak-{number}", grace_seconds=0)

    def delete(self, number: int, *, keep: bool) -> None:
        """See Pods."""
        path = pod_path(f"soak-{number}")
        if keep:
            self._kube.merge(path, {"metadata": {"annotations": {KEEP: "true"}}})
        self._kube.delete(path)

    def write(self, number: int) -> None:
        """See Pods."""
        self._host(number).write(_real_vm(number))

    def has(self, number: int) -> bool:
        """See Pods."""
        return self._host(number).has(_real_vm(number))

    def _host(self, number: int) -> VmHost:
        return self._hosts[number % len(self._hosts)]


class StandInPods:
    """On a stand-in API server; nobody runs them."""

    def __init__(self, api: SoakApi, agents: list[AgentProcess]) -> None:
        self._api, self._agents = api, agents

    def create(self, number: int) -> None:
        """See Pods."""
        self._api.create_pod(number, self._agent(number).node_name)

    def delete(self, number: int, *, keep: bool) -> None:
        """See Pods."""
        self._api.delete_pod(names(number)[1], flag=KEEP if keep else "")

    def write(self, number: int) -> None:
        """See Pods."""
        write_snapshot(self._store(number), _stand_in_vm(number))

    def has(self, number: int) -> bool:
        """See Pods."""
        return (self._store(number) / _stand_in_vm(number)).is_dir()

    def _agent(self, number: int) -> AgentProcess:
        return self._agents[number % len(self._agents)]

    def _store(self, number: int) -> Path:
        return self._agent(number).root / "snapshots"


def _real_vm(number: int) -> str:
    return f"vk-default-soak-{number}"


def _stand_in_vm(number: int) -> str:
    namespace, name = names(number)
    return f"vk-{namespace}-{name}"


def test_ten_deletions_a_second_on_the_real_api_server(place: Place, tmp_path: Path) -> None:
    controller = place.controller(tmp_path / "controller", quick_lease=False)
    try:
        controller.start()
        for host in place.hosts:
            cluster.wait_ready(place.kube, host.node)
        _soak(RealPods(place), 10, controller, [host.agent for host in place.hosts])
    finally:
        controller.release()


def test_fifty_deletions_a_second_on_a_stand_in(agent_process: Callable[..., AgentProcess], tmp_path: Path) -> None:
    agents = [agent_process() for _ in range(5)]
    for agent in agents:
        (agent.root / "snapshots").mkdir(exist_ok=True)
    with SoakApi() as api:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", api.url)
        controller = ControllerProcess(tmp_path / "controller", kubeconfig, [agent.endpoint for agent in agents])
        try:
            controller.start()
            _soak(StandInPods(api, agents), 50, controller, agents)
        finally:
            controller.release()


def _soak(pods: Pods, a_second: int, controller: ControllerProcess, agents: list[AgentProcess]) -> None:
    pids = {"controller": controller.process.pid} | {each.node_name: each.process.pid for each in agents}
    memory, turnover = Memory(pids), Turnover(pods, int(a_second * _ROUND_SECONDS))
    took = turnover.run(a_second, _SECONDS, memory)

    def settled() -> bool:
        return turnover.is_settled() and not metric(controller.http_address, "cocoon_node_deletion_undone")

    wait_for(settled, 120, what="every snapshot being kept or gone as its pod said")
    deleted, late = turnover.deleted, turnover.late
    answers = ", ".join(f"{_mean_seconds(controller, action):.3f} s until {action}" for action in ("RETAIN", "PURGE"))
    print(f"{deleted} pods deleted in {took:.0f} s; on average {answers}, {late} later than {_ROUND_SECONDS / 2:g} s")
    print(f"medians of each third of the time: {memory}")
    if _SECONDS >= _JUDGED_SECONDS:
        assert {name: growth for name, growth in memory.growth().items() if growth > _ALLOWED_GROWTH} == {}


def _mean_seconds(controller: ControllerProcess, action: str) -> float:
    name = "cocoon_node_deletion_latency_seconds"
    total, count = (metric(controller.http_address, f"{name}_{part}", call=action) for part in ("sum", "count"))
    return total / count
