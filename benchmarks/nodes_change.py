"""How long a change on one of a thousand agents takes until the Node in the API shows it."""

import random
import statistics
import time

from benchmarks.fleet_cluster import FleetCluster, fleet_cluster
from benchmarks.harness import Row, Scale, at_most, figure, percentile
from benchmarks.node_watch import NodeWatch, watch_nodes

NAME = "change"
_SHOWN_SECONDS = 30
# Between two changes: others may be under way, but they do not queue up behind each other.
_PAUSE_SECONDS = 0.02


def run(scale: Scale) -> list[Row]:
    """Return the row for the 99th percentile of single changes, one after the other, on agents picked at random."""
    agents, changes = scale.pick(1000, 100), scale.pick(500, 50)
    with fleet_cluster(agents) as cluster, cluster.controller() as controller, watch_nodes(cluster.plane) as watch:
        picked = random.Random(1).choices(sorted(cluster.ports), k=changes)  # noqa: S311 (no secret)
        latencies = sorted(_change(cluster, watch, name) for name in picked)
        controller.check_running()
    p99 = percentile(latencies, 99)
    detail = f"median {figure(statistics.median(latencies))} ms, longest {figure(latencies[-1])} ms, {changes} changes"
    what = f"change on one of {agents} agents until the Node shows it: p99"
    return [at_most(NAME, what, "", p99, 250, "ms", detail)]


def _change(cluster: FleetCluster, watch: NodeWatch, name: str) -> float:
    """Change one agent and return the milliseconds until the API's watch delivered the Node with the new figure."""
    cluster.fleet.tell(f"change {name}")
    change = cluster.fleet.read_json(_SHOWN_SECONDS)
    shown_at = watch.wait_for(name, str(change["memory"]), _SHOWN_SECONDS)
    time.sleep(_PAUSE_SECONDS)
    return (shown_at - float(str(change["at"]))) * 1000
