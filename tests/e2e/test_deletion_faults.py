"""Pods are deleted while controllers are killed, agents cut off, the API server restarted: in the end all is right."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import Json, KubeApi, UnreachableError
from devenv.vm_runtime import VmRuntime
from tests.support import cluster
from tests.support.audit import AuditLog, Read
from tests.support.snapshot_calls import snapshots, state, usage
from tests.support.tcp_proxy import TcpProxy
from tests.support.vm_host import KEEP, VmHost, create_set, install_sets, pod_path, set_path, sets_served
from tests.support.waiting import wait_for

QUICK_LEASE = {
    "COCOON_NODE_CONTROLLER_LEASE_DURATION_SECONDS": "2",
    "COCOON_NODE_CONTROLLER_RENEW_DEADLINE_SECONDS": "1.5",
    "COCOON_NODE_CONTROLLER_RETRY_PERIOD_SECONDS": "0.3",
    "COCOON_NODE_CONTROLLER_LOG_FORMAT": "json",
}


@pytest.fixture
def place(
    own_control_plane: Callable[..., ControlPlane], tmp_path: Path
) -> Iterator[tuple[ControlPlane, KubeApi, list[VmHost]]]:
    """A control plane of the test's own that serves CocoonSets, and two VM hosts."""
    plane = own_control_plane()
    kube = plane.client()
    install_sets(kube)
    wait_for(lambda: sets_served(kube), 30, what="CocoonSets being served")
    hosts = []
    for number in range(2):
        agent = AgentProcess(tmp_path / f"agent-{number}", f"host-{number}")
        agent.start()
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        runtime = VmRuntime(plane.client(), agent.node_name, store)
        runtime.start()
        hosts.append(VmHost(kube, agent, runtime))
    yield plane, kube, hosts
    for host in hosts:
        host.runtime.stop()
        host.runtime.kube.close()
        host.agent.release()
    kube.close()


def _controller(
    directory: Path,
    plane: ControlPlane,
    hosts: list[VmHost],
    settings: Mapping[str, str],
    agents: Mapping[str, str] | None = None,
) -> ControllerProcess:
    """Return a controller; `agents` are other ways to hosts' agents by node name."""
    endpoints = [f"{host.node}={(agents or {}).get(host.node, host.agent.address)}" for host in hosts]
    return ControllerProcess(directory, plane.kubeconfig("controller"), endpoints, QUICK_LEASE | dict(settings))


@pytest.mark.timeout(900)
def test_everything_ends_right(
    place: tuple[ControlPlane, KubeApi, list[VmHost]], tmp_path: Path, long_profile: bool
) -> None:
    """F13, F15, F16, F17: half of the pods carry the flag, the sets of the other half are deleted."""
    plane, kube, hosts = place
    count = 2000 if long_profile else 200
    chance = random.Random(7)  # noqa: S311 - a test's chance, no secret
    controllers = [
        _controller(tmp_path / f"controller-{n}", plane, hosts, {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"})
        for n in range(2)
    ]
    try:
        for controller in controllers:
            controller.start()
        made = [_make(kube, hosts[n % 2], f"set-{n}") for n in range(count)]
        wait_for(lambda: _all_claimed(hosts, count), 120, what="all snapshots being claimed")
        for number, (host, owner) in enumerate(made):
            _end(kube, host, owner, keep=number % 2 == 0)
            if chance.random() < 8 / count:
                _disturb(chance, plane, controllers, hosts)
        for host in hosts:
            if not host.agent.process.running:
                host.agent.start()
        wait_for(lambda: _is_right(made), 240, what="flagged ones being kept and the others being gone")
    finally:
        for controller in controllers:
            controller.release()
    purges = [each for controller in controllers for each in _decided_purges(controller)]
    assert len({each.pod for each in purges}) >= count // 2
    assert _without_confirming_read(purges, AuditLog(plane.audit_log).reads()) == []


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
        # A killed process may leave half a line.
        entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
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


def _make(kube: KubeApi, host: VmHost, name: str) -> tuple[VmHost, Json]:
    owner = create_set(kube, name)
    host.create_pod(f"{name}-0", owner=owner, grace_seconds=0)
    host.write(f"vk-default-{name}-0")
    return host, owner


def _all_claimed(hosts: list[VmHost], count: int) -> bool:
    in_use = sum(each.state == 3 for host in hosts for each in snapshots(host.agent.address).values())
    return in_use == count


def _end(kube: KubeApi, host: VmHost, owner: Json, *, keep: bool) -> None:
    """Suspend and free the seat as the contract orders it, or delete set and pod."""
    name = owner["metadata"]["name"]
    steps: list[Callable[[], object]]
    if keep:
        stash = {"metadata": {"annotations": {"cocoonset.cocoonstack.io/hibernated-on-node": host.node}}}
        steps = [
            lambda: kube.merge(set_path(name), stash | {"spec": {"suspend": True}}),
            lambda: kube.merge(pod_path(f"{name}-0"), {"metadata": {"annotations": {KEEP: "true"}}}),
            lambda: kube.discard(pod_path(f"{name}-0")),
        ]
    else:
        steps = [lambda: kube.discard(set_path(name)), lambda: kube.discard(pod_path(f"{name}-0"))]
    for step in steps:
        _persistently(step)


def _persistently(step: Callable[[], object]) -> None:
    """Repeat a request while the API server is away."""

    def attempt() -> bool:
        step()
        return True

    wait_for(attempt, 120, what="the API taking a request", ignoring=(UnreachableError,))


def _disturb(
    chance: random.Random, plane: ControlPlane, controllers: list[ControllerProcess], hosts: list[VmHost]
) -> None:
    kind = chance.randrange(4)
    if kind < 2:
        controller = chance.choice(controllers)
        controller.kill()
        controller.start()
    elif kind == 2:
        plane.restart_api_server()
    else:
        agent = chance.choice(hosts).agent
        if agent.process.running:
            agent.process.kill()
        else:
            agent.start()


def _is_right(made: list[tuple[VmHost, Json]]) -> bool:
    for number, (host, owner) in enumerate(made):
        vm = f"vk-default-{owner['metadata']['name']}-0"
        wanted = number % 2 == 0
        if wanted:
            # Never waited for: what is gone once does not come back.
            assert host.has(vm), f"{vm} carried the flag and is gone"
        elif host.has(vm):
            return False
    found = {address: snapshots(address) for address in {host.agent.address for host, _ in made}}
    return all(
        found[host.agent.address][f"vk-default-{owner['metadata']['name']}-0"].HasField("retention")
        for host, owner in made[::2]
    )


def test_stopped_leader_comes_back_too_late(place: tuple[ControlPlane, KubeApi, list[VmHost]], tmp_path: Path) -> None:
    """Two controllers; the leader is stopped for longer than its lease: the next one leads, and only one acts after."""
    plane, kube, hosts = place
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"}
    first = _controller(tmp_path / "first", plane, hosts, shared)
    second = _controller(tmp_path / "second", plane, hosts, shared)
    try:
        first.start()
        cluster.wait_ready(kube, hosts[0].node)
        second.start()
        host, owner = _make(kube, hosts[0], "set-a")
        vm = "vk-default-set-a-0"
        wait_for(lambda: _all_claimed(hosts, 1), 30, what="the snapshot being claimed")
        epoch = usage(host.agent.address).controller_epoch
        first.process.signal(signal.SIGSTOP)
        wait_for(lambda: usage(host.agent.address).controller_epoch > epoch, 30, what="the second one leading")
        _end(kube, host, owner, keep=False)
        wait_for(lambda: not host.has(vm), 30, what="the snapshot being purged by the second one")
        first.process.signal(signal.SIGCONT)
        host, owner = _make(kube, hosts[0], "set-b")
        wait_for(lambda: _all_claimed(hosts, 1), 30, what="the next snapshot being claimed")
        _end(kube, host, owner, keep=True)
        wait_for(lambda: _is_right([(host, owner)]), 30, what="the flag being kept")
        lease = kube.get("/apis/coordination.k8s.io/v1/namespaces/cocoon-system/leases/shared")
        assert usage(host.agent.address).controller_epoch == lease["spec"]["leaseTransitions"]
    finally:
        first.process.signal(signal.SIGCONT)
        first.release()
        second.release()


def test_late_purge_is_refused(place: tuple[ControlPlane, KubeApi, list[VmHost]], tmp_path: Path) -> None:
    """F32: a purge that the leader has sent is held in the network, the leader is stopped, and it arrives late.

    The pod belongs to no set and its deletion was seen by the first one only, so the second one leaves its snapshot.
    """
    plane, kube, hosts = place
    host, proxy = hosts[0], TcpProxy(hosts[0].agent.address)
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": "shared"}
    first = _controller(tmp_path / "first", plane, hosts, shared, {host.node: proxy.address})
    second = _controller(tmp_path / "second", plane, hosts, shared)
    try:
        first.start()
        cluster.wait_ready(kube, host.node)
        host.create_pod("web-0", grace_seconds=0)
        vm = "vk-default-web-0"
        host.write(vm)
        wait_for(lambda: _all_claimed(hosts, 1), 30, what="the snapshot being claimed")
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


def _cut(proxy: TcpProxy) -> None:
    proxy.refusing = True
    proxy.cut()


def _delay(proxy: TcpProxy) -> None:
    proxy.delay_seconds = 0.3


def _half_open(proxy: TcpProxy) -> None:
    proxy.silent = True


def _trickle(proxy: TcpProxy) -> None:
    proxy.trickle_bytes = 64


TROUBLES = [
    pytest.param(_cut, id="cut"),
    pytest.param(_delay, id="delayed"),
    pytest.param(_half_open, id="half open"),
    pytest.param(_trickle, id="trickling"),
]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_agents_behind_a_bad_network(
    trouble: Callable[[TcpProxy], None], place: tuple[ControlPlane, KubeApi, list[VmHost]], tmp_path: Path
) -> None:
    """F13: pods of a host that is hard to reach go meanwhile; the other's decisions and its Lease do not wait."""
    plane, kube, hosts = place
    proxy = TcpProxy(hosts[0].agent.address)
    controller = _controller(tmp_path / "controller", plane, hosts, {}, {hosts[0].node: proxy.address})
    try:
        controller.start()
        for host in hosts:
            cluster.wait_ready(kube, host.node)
        made = [_make(kube, hosts[n % 2], f"set-{n}") for n in range(6)]
        wait_for(lambda: _all_claimed(hosts, 6), 30, what="all snapshots being claimed")
        trouble(proxy)
        for number, (host, owner) in enumerate(made):
            _end(kube, host, owner, keep=number in (0, 3))
        gone = [f"vk-default-set-{n}-0" for n in (1, 5)]
        wait_for(lambda: not any(hosts[1].has(vm) for vm in gone), 30, what="the reachable host's being purged")
        renewed = cluster.wait_lease(kube, hosts[1].node)["spec"]["renewTime"]
        wait_for(
            lambda: cluster.wait_lease(kube, hosts[1].node)["spec"]["renewTime"] != renewed, 20, what="a Lease renewal"
        )
        proxy.repair()
        gone = [f"vk-default-set-{n}-0" for n in (2, 4)]
        wait_for(lambda: not any(hosts[0].has(vm) for vm in gone), 60, what="the others being purged after the repair")
        wait_for(lambda: state(hosts[0].agent.address, "vk-default-set-0-0") == "RETAINED", 60, what="one being kept")
        assert state(hosts[1].agent.address, "vk-default-set-3-0") == "RETAINED"
    finally:
        controller.release()
        proxy.close()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_api_behind_a_bad_network(
    trouble: Callable[[TcpProxy], None], place: tuple[ControlPlane, KubeApi, list[VmHost]], tmp_path: Path
) -> None:
    """F13: pods go while the controller hardly reaches the API; what is decided after the repair is right."""
    plane, kube, hosts = place
    api = plane.url.removeprefix("https://")
    proxy = TcpProxy(api)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(plane.kubeconfig("controller").read_text().replace(api, proxy.address))
    controller = _controller(
        tmp_path / "controller", plane, hosts, {"COCOON_NODE_CONTROLLER_KUBECONFIG": str(kubeconfig)}
    )
    try:
        controller.start()
        for host in hosts:
            cluster.wait_ready(kube, host.node)
        made = [_make(kube, hosts[n % 2], f"set-{n}") for n in range(6)]
        wait_for(lambda: _all_claimed(hosts, 6), 30, what="all snapshots being claimed")
        trouble(proxy)
        for number, (host, owner) in enumerate(made):
            _end(kube, host, owner, keep=number % 2 == 0)
        wait_for(lambda: all(kube.find(pod_path(f"set-{n}-0")) is None for n in range(6)), 30, what="no pod waiting")
        proxy.repair()
        wait_for(lambda: _is_right(made), 60, what="flagged ones being kept and the others being gone")
    finally:
        controller.release()
        proxy.close()
