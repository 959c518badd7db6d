"""How soon a suspended VM's seat is free once its snapshot is safe: ten sets a second, and 500 at once."""

import statistics
import time

from benchmarks.harness import TIMES, Row, Scale, at_most, compared, figure, median_ratio, percentile, take_turns
from benchmarks.seats_cluster import (
    KEEP,
    NODE,
    PODS,
    SETS,
    STASH,
    SeatCluster,
    by_controller,
    create_pods,
    hibernated_pod,
    seat_cluster,
    status_body,
    vm_name,
    wait_node,
)
from benchmarks.seats_load import Call, send, send_each
from benchmarks.seats_pods import PodTimes
from devenv.processes import wait_until

NAME = "seat-release"
_RATE = 10.0
_SECONDS = 180.0
_MOST_WRITES = 4


def run(scale: Scale) -> list[Row]:
    """Return the rows; sizes are the promise's."""
    some, many = scale.pick(100, 20), scale.pick(500, 60)
    with seat_cluster(2 * many) as cluster:
        rows = _one_by_one(cluster, some)
        return [*rows, _at_once(cluster, many, scale.rounds)]


def _one_by_one(cluster: SeatCluster, count: int) -> list[Row]:
    names = [f"web-{number}" for number in range(count)]
    times = PodTimes(cluster.plane)
    with cluster.controller():
        wait_node(cluster)
        cluster.create_sets(names, suspend=False)
        cluster.wait_phase(count, "Running")
        since = cluster.mark()
        send_each(
            cluster.plane, [[Call("PATCH", f"{SETS}/{name}", {"spec": {"suspend": True}})] for name in names], _RATE
        )
        wait_until(lambda: len(times.gone) >= count, _SECONDS, "all pods being gone")
        cluster.wait_phase(count, "Suspended")
        time.sleep(1)  # The log is written a moment after the answer.
    times.stop()
    taken = [(times.gone[pod] - at) * 1000 for pod, at in times.hibernated.items()]
    writes = by_controller(cluster.writes(since))
    after = [
        sum(w.name in (name, f"{name}-0") and w.came_at > times.hibernated[f"{name}-0"] for w in writes)
        for name in names
    ]
    cluster.clear()
    detail = f"median {figure(statistics.median(taken))} ms, longest {figure(max(taken))} ms of {count}"
    what = f"{_RATE:g} sets a second: from hibernated in the API until the pod is gone, p99"
    return [
        at_most(NAME, what, "", percentile(taken, 99), 1000, "ms", detail),
        at_most(NAME, "API writes a set after the gate, most", "", max(after), _MOST_WRITES, "writes"),
    ]


def _at_once(cluster: SeatCluster, count: int, rounds: int) -> Row:
    names = [f"many-{number}" for number in range(count)]
    ours, peers = take_turns(rounds, lambda: _by_us(cluster, names), lambda: _bare(cluster, names))
    what = f"{count} sets released at once, first to last write"
    against = "the same writes by an asyncio client"
    ratio = median_ratio(ours, peers)
    return at_most(NAME, what, against, ratio, 1.5, TIMES, compared("s", ours, peers))


def _prepare(cluster: SeatCluster, names: list[str]) -> list[str]:
    """Have every set suspended, its VM hibernated and its snapshot pushed; return the UIDs of the pods."""
    cluster.tell_runtime("idle")
    sets = cluster.create_sets(names, suspend=True)
    cluster.push(names)
    create_pods(cluster, [hibernated_pod(each) for each in sets])
    return [str(cluster.kube.get(f"{PODS}/{name}-0")["metadata"]["uid"]) for name in names]


def _by_us(cluster: SeatCluster, names: list[str]) -> float:
    _prepare(cluster, names)
    since = cluster.mark()
    with cluster.controller():
        cluster.wait_phase(len(names), "Suspended")
        time.sleep(1)
    writes = by_controller(cluster.writes(since))
    cluster.clear()
    return max(w.done_at for w in writes) - min(w.came_at for w in writes)


def _bare(cluster: SeatCluster, names: list[str]) -> float:
    chains = []
    for name, uid in zip(names, _prepare(cluster, names), strict=True):
        metadata = {"uid": uid, "annotations": {KEEP: "true"}}
        chains.append(
            [
                Call("PATCH", f"{SETS}/{name}", {"metadata": {"annotations": {STASH: NODE}}}),
                Call("PATCH", f"{PODS}/{name}-0", {"metadata": metadata}),
                Call("DELETE", f"{PODS}/{name}-0", {"preconditions": {"uid": uid}}),
                Call("PATCH", f"{SETS}/{name}/status", status_body("Suspended", "Suspended", vm_name(name))),
            ]
        )
    seconds = send(cluster.plane, chains)
    cluster.clear()
    return seconds
