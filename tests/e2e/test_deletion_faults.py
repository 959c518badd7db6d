"""Pods are deleted while controllers are killed, agents cut off, the API server restarted: in the end all is right."""

from __future__ import annotations

import json
import random
import signal
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from devenv.cocoon_programs import ControllerProcess
from tests.support import cluster
from tests.support.audit import AuditLog, Read
from tests.support.deletion_place import LEADER_LEASES, Place, all_claimed, end, is_right, make
from tests.support.metrics import metric
from tests.support.snapshot_calls import state, usage
from tests.support.tcp_proxy import TcpProxy
from tests.support.vm_host import pod_path
from tests.support.waiting import wait_for


@pytest.mark.timeout(900)
def test_everything_ends_right(place: Place, tmp_path: Path, long_profile: bool) -> None:
    """F13, F15, F16, F17: half of the pods carry the flag, the sets of the other half are deleted.

    With thousands of pods more than a hundred deletions are seen by no leader, and the brake holds the rest for ten
    minutes, as it should. What it holds is released here as a person does it, with `plan --release`.
    """
    count = 2000 if long_profile else 200
    chance = random.Random(7)  # noqa: S311 - a test's chance, no secret
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"}
    controllers = [place.controller(tmp_path / f"controller-{n}", shared) for n in range(2)]
    try:
        for controller in controllers:
            controller.start()
        made = place.make(count)
        for number, (host, owner) in enumerate(made):
            end(place.kube, host, owner, keep=number % 2 == 0)
            if chance.random() < 8 / count:
                _disturb(chance, place, controllers)
        for host in place.hosts:
            if not host.agent.process.running:
                host.agent.start()

        def right_or_released() -> bool:
            if is_right(made):
                return True
            if any(metric(each.http_address, "cocoon_node_deletion_braked") for each in controllers):
                place.release_braked(controllers[0])
            return False

        wait_for(right_or_released, 240, what="flagged ones being kept and the others being gone")
    finally:
        for controller in controllers:
            controller.release()
    purges = [each for controller in controllers for each in _decided_purges(controller)]
    assert len({each.pod for each in purges}) >= count // 2
    assert _without_confirming_read(purges, AuditLog(place.plane.audit_log).reads()) == []


@dataclass(frozen=True)
class DecidedPurge:
    """One purge as the controller's log told it right before it was sent, and the last one for the same pod before."""

    pod: str
    at: float
    last_at: float


def _decided_purges(controller: ControllerProcess) -> list[DecidedPurge]:
    purges: list[DecidedPurge] = []
    last: dict[str, float] = {}
    for line in controller.process.log_path.read_text().splitlines():
        # A killed process may leave half a line, and the next one writes on behind it.
        try:
            entry = json.loads(line[max(0, line.rfind('{"time"')) :])
        except ValueError:
            continue
        if entry.get("message") == "decided" and entry["action"] == "PURGE":
            pod, at = entry["pod"], datetime.fromisoformat(entry["time"]).timestamp()
            purges.append(DecidedPurge(pod, at, last.get(pod, 0.0)))
            last[pod] = at
    return purges


def _without_confirming_read(purges: list[DecidedPurge], reads: list[Read]) -> list[DecidedPurge]:
    """Return the purges before which the pod was not asked for since the last purge, as the API server tells it."""
    asked: dict[str, list[float]] = {}
    for read in reads:
        if read.resource == "pods" and read.status in (200, 404):
            asked.setdefault(f"{read.namespace}/{read.name}", []).append(read.at)
    # The log's times are cut to milliseconds.
    return [
        each
        for each in purges
        if not any(each.last_at + 0.001 < at < each.at + 0.001 for at in asked.get(each.pod, ()))
    ]


def _disturb(chance: random.Random, place: Place, controllers: list[ControllerProcess]) -> None:
    kind = chance.randrange(4)
    if kind < 2:
        controller = chance.choice(controllers)
        controller.kill()
        controller.start()
    elif kind == 2:
        place.plane.restart_api_server()
    else:
        agent = chance.choice(place.hosts).agent
        if agent.process.running:
            agent.process.kill()
        else:
            agent.start()


def test_stopped_leader_comes_back_too_late(place: Place, tmp_path: Path) -> None:
    """Two controllers; the leader is stopped for longer than its lease: the next one leads, and only one acts after."""
    kube, hosts = place.kube, place.hosts
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"}
    first = place.controller(tmp_path / "first", shared)
    second = place.controller(tmp_path / "second", shared)
    try:
        first.start()
        cluster.wait_ready(kube, hosts[0].node)
        second.start()
        host, owner = make(kube, hosts[0], "set-a")
        vm = "vk-default-set-a-0"
        wait_for(lambda: all_claimed(hosts, 1), 30, what="the snapshot being claimed")
        epoch = usage(host.agent.address).controller_epoch
        first.process.signal(signal.SIGSTOP)
        wait_for(lambda: usage(host.agent.address).controller_epoch > epoch, 30, what="the second one leading")
        end(kube, host, owner, keep=False)
        wait_for(lambda: not host.has(vm), 30, what="the snapshot being purged by the second one")
        first.process.signal(signal.SIGCONT)
        host, owner = make(kube, hosts[0], "set-b")
        wait_for(lambda: all_claimed(hosts, 1), 30, what="the next snapshot being claimed")
        end(kube, host, owner, keep=True)
        wait_for(lambda: is_right([(host, owner)]), 30, what="the flag being kept")
        lease = kube.get(f"{LEADER_LEASES}/shared")
        assert usage(host.agent.address).controller_epoch == lease["spec"]["leaseTransitions"]
    finally:
        first.process.signal(signal.SIGCONT)
        first.release()
        second.release()


def test_late_purge_is_refused(place: Place, tmp_path: Path) -> None:
    """F32: a purge that the leader has sent is held in the network, the leader is stopped, and it arrives late.

    The pod belongs to no set and its deletion was seen by the first one only, so the second one leaves its snapshot.
    """
    kube, hosts = place.kube, place.hosts
    host, proxy = hosts[0], TcpProxy(hosts[0].agent.address)
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"}
    first = place.controller(tmp_path / "first", shared, {host.node: proxy.address})
    second = place.controller(tmp_path / "second", shared)
    try:
        first.start()
        cluster.wait_ready(kube, host.node)
        host.create_pod("web-0", grace_seconds=0)
        vm = "vk-default-web-0"
        host.write(vm)
        wait_for(lambda: all_claimed(hosts, 1), 30, what="the snapshot being claimed")
        epoch = usage(host.agent.address).controller_epoch
        proxy.trap = b"PurgeSnapshots"
        kube.delete(pod_path("web-0"))
        assert proxy.trapped.wait(30), "no purge was sent"
        first.process.signal(signal.SIGSTOP)
        second.start()
        wait_for(lambda: usage(host.agent.address).controller_epoch > epoch, 30, what="the second one leading")
        wait_for(lambda: state(host.agent.address, vm) == "UNCLAIMED", 30, what="the second one leaving the snapshot")
        proxy.spring()
        wait_for(lambda: b"the highest known here" in proxy.answers, 30, what="the late purge being refused")
        assert host.has(vm)
        first.process.signal(signal.SIGCONT)
        assert state(host.agent.address, vm) == "UNCLAIMED"
    finally:
        first.process.signal(signal.SIGCONT)
        first.release()
        second.release()
        proxy.close()
