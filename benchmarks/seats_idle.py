"""What 5,000 suspended sets cost a controller that has nothing to do for them: CPU, and API writes.

Their copies are kept by one real agent and their manifests are in the registry, so what keeps promises true is part of
it.
"""

import time

from benchmarks.harness import Row, Scale, at_most
from benchmarks.seats_cluster import NODE, SETS, by_controller, seat_cluster, status_body, vm_name, wait_node
from benchmarks.seats_load import Call, send
from devenv.processes import wait_until
from devenv.vm_snapshots import write_snapshot

NAME = "seat-idle"
_SETTLE_SECONDS = 180.0
_QUIET_SECONDS = 10.0


def run(scale: Scale) -> list[Row]:
    """Return the row for a minute of nothing."""
    count, seconds = scale.pick(5000, 500), scale.pick(60, 10)
    names = [f"web-{number}" for number in range(count)]
    with seat_cluster(count) as cluster:
        cluster.create_sets(names, suspend=True, stash=True)
        body = status_body("Suspended", "Suspended", "the set has no pod and holds no seat")
        send(cluster.plane, [[Call("PATCH", f"{SETS}/{name}/status", body)] for name in names])
        cluster.push(names)
        for name in names:
            write_snapshot(cluster.agent.root / "snapshots", vm_name(name), snapshot_id=f"id-{name}", size_bytes=1)
        with cluster.controller() as controller:
            wait_node(cluster)
            _wait_quiet(controller.process.pid)
            since, before, began = cluster.mark(), _cpu_seconds(controller.process.pid), time.monotonic()
            time.sleep(seconds)
            used = (_cpu_seconds(controller.process.pid) - before) / (time.monotonic() - began) * 100
            writes = by_controller(cluster.writes(since))
    detail = f"{len(writes)} writes of sets and pods in {seconds} s, with {NODE}'s agent keeping the copies"
    return [at_most(NAME, f"idle with {count} suspended sets: CPU", "", used, 5, "% of a core", detail)]


def _wait_quiet(pid: int) -> None:
    """Return when the start's work is over: a while with next to no CPU."""

    def is_quiet() -> bool:
        before = _cpu_seconds(pid)
        time.sleep(_QUIET_SECONDS)
        return _cpu_seconds(pid) - before < _QUIET_SECONDS * 0.1

    wait_until(is_quiet, _SETTLE_SECONDS, "the controller's start being over")


def _cpu_seconds(pid: int) -> float:
    # The kernel's per-process CPU clock of another process: its complemented id above the three bits of the kind.
    return time.clock_gettime((~pid << 3) | 2)
