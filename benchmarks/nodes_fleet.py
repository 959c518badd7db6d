"""What a thousand quiet agents cost the controller: CPU, memory, punctual leases, and no other write.

The peer is a Go client that does the same to the same agents: once streams and leases, once streams alone, for which
the controller is told that somebody else renews the leases. The controller runs all the time, the peer in its turns.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from benchmarks import go_programs
from benchmarks.fleet import HEARTBEAT_SECONDS
from benchmarks.fleet_cluster import FleetCluster, administrator, fleet_cluster
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import Child
from devenv.audit_log import audit_events
from devenv.credentials import CONTROLLER_USER

NAME = "fleet"
# What follows a start (conditions, a second look at each Node) is not what a quiet fleet costs.
_SETTLE_SECONDS = 15
_OPEN_SECONDS = 120


def run(scale: Scale) -> list[Row]:
    """Return the rows for a fleet in which nothing changes."""
    agents, seconds = scale.pick(1000, 100), scale.pick(30, 10)
    what = f"{agents} quiet agents: "
    with fleet_cluster(agents) as cluster:
        alone, streams = _streams_alone(cluster, scale, seconds)
        with cluster.controller() as controller:
            time.sleep(_SETTLE_SECONDS)
            began_at = time.time()
            ours, leases = take_turns(
                scale.rounds,
                lambda: _cpu_percent(controller, seconds),
                lambda: _peer_percent(cluster, seconds, leases=True),
            )
            ended_at = time.time()
            memory = controller.peak_rss_bytes() / 1e6
        writes = [write for write in _writes(cluster.plane.audit_log) if began_at <= write.at <= ended_at]
    peer = "Go client with the same streams"
    return [
        _ratio_row(f"{what}CPU of the streams", peer, alone, streams),
        _ratio_row(f"{what}CPU of streams and leases", f"{peer} and as many leases", ours, leases),
        at_most(NAME, f"{what}CPU of the controller", "", max(ours), 15, "% of a core", "the highest round"),
        at_most(NAME, f"{what}peak memory of the controller", "", memory, 200, "MB"),
        *_write_rows(what, writes, sorted(cluster.ports), (began_at, ended_at)),
    ]


def _streams_alone(cluster: FleetCluster, scale: Scale, seconds: float) -> tuple[list[float], list[float]]:
    """Return the CPU of the controller without leases, and of the peer; the Nodes have to be there already."""
    with cluster.controller():
        pass
    with cluster.controller(lifecycle="external") as controller:
        time.sleep(_SETTLE_SECONDS)
        ours, peers = take_turns(
            scale.rounds,
            lambda: _cpu_percent(controller, seconds),
            lambda: _peer_percent(cluster, seconds, leases=False),
        )
        return ours, peers


def _ratio_row(what: str, against: str, ours: Sequence[float], peers: Sequence[float]) -> Row:
    detail = compared("% of a core", ours, peers)
    return at_most(NAME, what, against, median_ratio(ours, peers), 4, TIMES, detail)


def _cpu_percent(child: Child, seconds: float) -> float:
    """Return the share of one core a process uses over this time, in percent."""
    before, started = child.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    child.check_running()
    return 100 * (child.cpu_seconds() - before) / (time.monotonic() - started)


def _peer_percent(cluster: FleetCluster, seconds: float, *, leases: bool) -> float:
    command = [str(go_programs.build("client")), "watch", f"-targets={cluster.targets_file()}"]
    if leases:
        ca_file, token = administrator(cluster.plane)
        command += [f"-api={cluster.plane.url}", f"-ca={ca_file}", f"-token={token}"]
    with Child(command) as peer:
        peer.read_json(_OPEN_SECONDS)
        # From here on every stream has its heartbeats.
        time.sleep(HEARTBEAT_SECONDS)
        return _cpu_percent(peer, seconds)


@dataclass(frozen=True, slots=True)
class _Write:
    """One writing request of the controller, from the API server's audit log; `at` in Unix seconds."""

    verb: str
    resource: str
    namespace: str
    name: str
    at: float


def _writes(audit_log: Path) -> Iterable[_Write]:
    for event in audit_events(audit_log):
        if event["user"]["username"] != CONTROLLER_USER:
            continue
        target = event.get("objectRef", {})
        at = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        yield _Write(event["verb"], target.get("resource", ""), target.get("namespace", ""), target.get("name", ""), at)


def _write_rows(what: str, writes: Sequence[_Write], nodes: Sequence[str], window: tuple[float, float]) -> list[Row]:
    # The window's ends stand in for the renewals outside it, so that a lease nobody renews counts as late.
    renewals = {node: list(window) for node in nodes}
    others: list[_Write] = []
    for write in writes:
        if write.resource != "leases":
            others.append(write)
        elif write.namespace == "kube-node-lease":
            renewals.setdefault(write.name, []).append(write.at)
    gaps = [late - early for times in renewals.values() for early, late in pairwise(sorted(times))]
    renewed = sum(write.resource == "leases" for write in writes)
    seen = f"{renewed} renewals of {len(nodes)} leases in {window[1] - window[0]:.0f} s"
    examples = ", ".join(sorted({f"{write.verb} {write.resource}" for write in others})[:5])
    return [
        at_most(NAME, f"{what}longest time between two renewals of a lease", "", max(gaps), 15, "s", seen),
        at_most(NAME, f"{what}writes other than leases", "", len(others), 0, "writes", examples),
    ]
