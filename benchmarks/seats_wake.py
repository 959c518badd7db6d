"""How soon a VM that is woken has its pod bound again: ten sets a second, and 500 at once."""

import statistics
import time
from collections.abc import Sequence

from benchmarks.harness import TIMES, Row, Scale, at_most, compared, figure, median_ratio, percentile, take_turns
from benchmarks.seats_cluster import (
    NODE,
    PODS,
    SETS,
    SeatCluster,
    Write,
    by_controller,
    seat_cluster,
    status_body,
    wait_node,
    wait_rarely,
)
from benchmarks.seats_load import Call, send, send_each
from benchmarks.seats_pods import PodTimes
from controller.seats.pods import main_pod
from devenv.kube_api import Json
from devenv.processes import wait_until

NAME = "seat-wake"
_RATE = 10.0
_SECONDS = 180.0


def run(scale: Scale) -> list[Row]:
    """Return the rows; sizes are the promise's."""
    some, many = scale.pick(100, 20), scale.pick(500, 60)
    with seat_cluster(2 * many) as cluster:
        return [_one_by_one(cluster, some), _at_once(cluster, many, scale.rounds)]


def _sleeping(cluster: SeatCluster, names: Sequence[str], *, suspend: bool) -> list[Json]:
    """Have sets that sleep: suspended or just woken, with stash, status and snapshot, without pods."""
    cluster.tell_runtime("idle")
    sets = cluster.create_sets(names, suspend=suspend, stash=True)
    body = status_body("Suspended", "Suspended", "the set has no pod and holds no seat")
    send(cluster.plane, [[Call("PATCH", f"{SETS}/{name}/status", body)] for name in names])
    cluster.push(names)
    return sets


def _one_by_one(cluster: SeatCluster, count: int) -> Row:
    names = [f"web-{number}" for number in range(count)]
    with cluster.controller():
        wait_node(cluster)
        _sleeping(cluster, names, suspend=True)
        times = PodTimes(cluster.plane)
        wake = [[Call("PATCH", f"{SETS}/{name}", {"spec": {"suspend": False}})] for name in names]
        begun = send_each(cluster.plane, wake, _RATE)
        wait_until(lambda: len(times.bound) >= count, _SECONDS, "all pods being bound")
        times.stop()
    cluster.clear()
    taken = [(times.bound[f"{name}-0"] - at) * 1000 for name, at in zip(names, begun, strict=True)]
    detail = f"median {figure(statistics.median(taken))} ms, longest {figure(max(taken))} ms of {count}"
    what = f"{_RATE:g} wakes a second: from the request until the pod is bound, p99"
    return at_most(NAME, what, "", percentile(taken, 99), 2000, "ms", detail)


def _at_once(cluster: SeatCluster, count: int, rounds: int) -> Row:
    names = [f"many-{number}" for number in range(count)]
    ours, peers = take_turns(rounds, lambda: _by_us(cluster, names), lambda: _bare(cluster, names))
    what = f"{count} wakes at once, first write until the last pod is bound"
    against = "bare creation of the same pods"
    return at_most(NAME, what, against, median_ratio(ours, peers), 1.3, TIMES, compared("s", ours, peers))


def _by_us(cluster: SeatCluster, names: list[str]) -> float:
    _sleeping(cluster, names, suspend=False)
    since = cluster.mark()
    with cluster.controller():
        _wait_bound(cluster, len(names))
        writes = cluster.writes(since)
    cluster.clear()
    return _last_binding(writes) - min(w.came_at for w in by_controller(writes))


def _bare(cluster: SeatCluster, names: list[str]) -> float:
    sets = _sleeping(cluster, names, suspend=False)
    pods = [main_pod(each, restores=True, preferred_node=NODE) for each in sets]
    since = cluster.mark()
    # The Node needs its Lease, and so somebody to renew it, but nobody to look at sets.
    started = time.time()
    send(cluster.plane, [[Call("POST", PODS, pod)] for pod in pods])
    _wait_bound(cluster, len(names))
    writes = cluster.writes(since)
    cluster.clear()
    return _last_binding(writes) - started


def _wait_bound(cluster: SeatCluster, count: int) -> None:
    def all_bound() -> bool:
        return sum(bool(pod["spec"].get("nodeName")) for pod in cluster.kube.items(PODS)) >= count

    wait_rarely(all_bound, _SECONDS, f"{count} pods being bound")
    time.sleep(1)  # The log is written a moment after the answer.


def _last_binding(writes: Sequence[Write]) -> float:
    return max(w.done_at for w in writes if w.resource == "pods/binding")
