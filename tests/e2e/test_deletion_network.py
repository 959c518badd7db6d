"""Pods are deleted while the network between controller, API server and agents is bad: all is right after the repair.

Every trouble lasts until the controller feels it, and every decision is made within a minute of its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from devenv.cocoon_programs import ControllerProcess
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.deletion_place import LEADER_LEASES, Made, Place, end, is_right
from tests.support.metrics import metric
from tests.support.snapshot_calls import state
from tests.support.tcp_proxy import TcpProxy
from tests.support.vm_host import pod_path
from tests.support.waiting import wait_for

Trouble = Callable[[TcpProxy], None]
REPAIRED_SECONDS = 60.0
# Half of what a Node's Lease lasts; it is renewed every 10 s.
_LATEST_RENEWAL_SECONDS = 20.0


def _cut(proxy: TcpProxy) -> None:
    proxy.refusing = True
    proxy.cut()


def _delay(proxy: TcpProxy) -> None:
    proxy.delay_seconds = 0.3


def _half_open(proxy: TcpProxy) -> None:
    proxy.silent = True


def _trickle(proxy: TcpProxy) -> None:
    proxy.trickle_bytes = 64


def _forget(proxy: TcpProxy) -> None:
    """Half-open, and the repair brings none of the connections back."""
    proxy.silent = True
    proxy.forget()


def _repair(proxy: TcpProxy, trouble: Trouble) -> None:
    if trouble is _forget:
        proxy.silent = False
    else:
        proxy.repair()


SLOW = [pytest.param(_delay, id="delayed"), pytest.param(_trickle, id="trickling")]
DEAD = [
    pytest.param(_cut, id="cut"),
    pytest.param(_half_open, id="half open", marks=pytest.mark.long),
    pytest.param(_forget, id="half open for ever"),
]


@contextmanager
def _behind_proxy(
    place: Place, tmp_path: Path, *, quick_lease: bool = True
) -> Iterator[tuple[ControllerProcess, TcpProxy]]:
    """A started controller that reaches the API through a proxy."""
    api = place.plane.url.removeprefix("https://")
    proxy = TcpProxy(api)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(place.plane.kubeconfig("controller").read_text().replace(api, proxy.address))
    settings = {"COCOON_NODE_CONTROLLER_KUBECONFIG": str(kubeconfig)}
    controller = place.controller(tmp_path / "controller", settings, quick_lease=quick_lease)
    try:
        controller.start()
        for host in place.hosts:
            cluster.wait_ready(place.kube, host.node)
        yield controller, proxy
    finally:
        controller.release()
        proxy.close()


def _end_all(place: Place, made: Made) -> None:
    for number, (host, owner) in enumerate(made):
        end(place.kube, host, owner, keep=number % 2 == 0)
    paths = [pod_path(f"{owner['metadata']['name']}-0") for _, owner in made]
    wait_for(lambda: all(place.kube.find(path) is None for path in paths), 30, what="no pod waiting")


def _leads(controller: ControllerProcess) -> bool:
    return metric(controller.http_address, "cocoon_node_leading") == 1


def _renewed_at(kube: KubeApi, path: str) -> str:
    return str(kube.get(path)["spec"]["renewTime"])


@pytest.mark.timeout(240)
@pytest.mark.parametrize("trouble", SLOW + DEAD)
def test_agents_behind_a_bad_network(trouble: Trouble, place: Place, tmp_path: Path) -> None:
    """F13: pods of a host that is hard to reach go meanwhile; the other's decisions and its Lease do not wait."""
    kube, hosts = place.kube, place.hosts
    proxy = TcpProxy(hosts[0].agent.address)
    controller = place.controller(tmp_path / "controller", {}, {hosts[0].node: proxy.address})
    try:
        controller.start()
        for host in hosts:
            cluster.wait_ready(kube, host.node)
        made = place.make(6)
        trouble(proxy)
        for number, (host, owner) in enumerate(made):
            end(kube, host, owner, keep=number in (0, 3))
        gone = [f"vk-default-set-{n}-0" for n in (1, 5)]
        wait_for(lambda: not any(hosts[1].has(vm) for vm in gone), 30, what="the reachable host's being purged")
        path = f"{cluster.LEASES}/{hosts[1].node}"
        renewed = cluster.wait_lease(kube, hosts[1].node)["spec"]["renewTime"]
        wait_for(lambda: _renewed_at(kube, path) != renewed, 20, what="a Lease renewal")

        def felt() -> bool:
            """Whether pauses between tries have grown, or nothing is left to try."""
            age = metric(controller.http_address, "cocoon_node_deletion_oldest_undone_seconds")
            return age > 25 or not metric(controller.http_address, "cocoon_node_deletion_undone")

        wait_for(felt, 60, what="the controller having tried for a while")
        _repair(proxy, trouble)
        gone = [f"vk-default-set-{n}-0" for n in (2, 4)]
        wait_for(lambda: not any(hosts[0].has(vm) for vm in gone), REPAIRED_SECONDS, what="the others being purged")
        kept = "vk-default-set-0-0"
        wait_for(lambda: state(hosts[0].agent.address, kept) == "RETAINED", REPAIRED_SECONDS, what="one being kept")
        assert state(hosts[1].agent.address, "vk-default-set-3-0") == "RETAINED"
    finally:
        controller.release()
        proxy.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("trouble", SLOW)
def test_a_slow_api_breaks_no_rhythm(trouble: Trouble, place: Place, tmp_path: Path) -> None:
    """F13, F14, with the default lease times: leadership and Nodes' Leases are kept while all answers come slowly."""
    with _behind_proxy(place, tmp_path, quick_lease=False) as (controller, proxy):
        made = place.make(6)
        leader = f"{LEADER_LEASES}/{controller.settings['COCOON_NODE_CONTROLLER_LEASE_NAME']}"
        epoch = place.kube.get(leader)["spec"]["leaseTransitions"]
        paths = [leader, *(f"{cluster.LEASES}/{host.node}" for host in place.hosts)]
        renewals: dict[str, set[str]] = {path: {_renewed_at(place.kube, path)} for path in paths}
        trouble(proxy)
        _end_all(place, made)

        def renewed_often() -> bool:
            for path in paths:
                renewals[path].add(_renewed_at(place.kube, path))
            return all(len(times) > 3 for times in renewals.values())

        wait_for(renewed_often, 3 * _LATEST_RENEWAL_SECONDS, what="every Lease being renewed three times")
        late = {
            path: pause
            for path, times in renewals.items()
            if (pause := _longest_pause(times)) > _LATEST_RENEWAL_SECONDS
        }
        assert late == {}
        assert place.kube.get(leader)["spec"]["leaseTransitions"] == epoch
        _repair(proxy, trouble)
        wait_for(lambda: is_right(made), REPAIRED_SECONDS, what="flagged ones being kept and the others being gone")


def _longest_pause(renewals: set[str]) -> float:
    """Return seconds between two renewals, as the one who renewed wrote them."""
    times = sorted(datetime.fromisoformat(each).timestamp() for each in renewals)
    return max(after - before for before, after in itertools.pairwise(times))


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "quick_lease",
    [pytest.param(True, id="quick lease"), pytest.param(False, id="default lease times", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("trouble", DEAD)
def test_an_api_out_of_reach(trouble: Trouble, quick_lease: bool, place: Place, tmp_path: Path) -> None:
    """F13: a leader that cannot renew stops in time, and comes back with every decision and every Lease."""
    with _behind_proxy(place, tmp_path, quick_lease=quick_lease) as (controller, proxy):
        made = place.make(6)
        trouble(proxy)
        _end_all(place, made)
        wait_for(lambda: not _leads(controller), 30, what="the leader having stopped")
        paths = [f"{cluster.LEASES}/{host.node}" for host in place.hosts]
        before = {path: _renewed_at(place.kube, path) for path in paths}
        _repair(proxy, trouble)

        def renewed() -> bool:
            return all(_renewed_at(place.kube, path) != before[path] for path in paths)

        wait_for(lambda: _leads(controller), _LATEST_RENEWAL_SECONDS, what="it leading again")
        wait_for(renewed, _LATEST_RENEWAL_SECONDS, what="the Leases of Nodes being renewed again")
        wait_for(lambda: is_right(made), REPAIRED_SECONDS, what="flagged ones being kept and the others being gone")
