"""Everything at once on one controller: many pods, agents, leases, events and deletions; and before, nothing at all.

API server and agents are stand-ins on this machine, in five processes beside the controller, over plain text. Most of
the deletions are seat releases, whose flag is written in the same breath; one in five is a teardown, which is purged.
Only the controller's process is measured; what the others take of the cores stands in the detail.
"""

import time
from collections.abc import Sequence

from benchmarks.deletion_cluster import Cluster, answer_times, deletion_cluster
from benchmarks.harness import TIMES, Row, Scale, at_most, figure, percentile
from benchmarks.processes import Child

NAME = "deletion-everything"
_EVENTS, _KEPT, _REMOVED = 600, 20, 5
_MIB = 1 << 20
_RENEW_SECONDS = 10
_PROCESSES = 4
# The controller freezes what is there to stay half a minute after it is ready.
_WARM_SECONDS = 30
_SLACK_SECONDS = 60


def run(scale: Scale) -> list[Row]:
    """Return the rows for the rest and for the load; the sizes are the promise's, the time is a minute."""
    pods, nodes = scale.pick(100_000, 8_000), scale.pick(5_000, 400)
    rest, seconds = scale.pick(20, 10), scale.pick(60, 10)
    with deletion_cluster(pods, nodes, _KEPT * seconds, processes=_PROCESSES) as cluster:
        time.sleep(_WARM_SECONDS)
        return [_rest_row(cluster, nodes, rest), *_load_rows(cluster, pods, nodes, seconds)]


def _rest_row(cluster: Cluster, nodes: int, seconds: float) -> Row:
    """Count what is written when nothing happens."""
    cluster.api.ask("count", 30)
    time.sleep(seconds)
    count = cluster.api.ask("count", 30)
    writes = count["writes"]
    assert isinstance(writes, dict)
    wanted = nodes / _RENEW_SECONDS * float(str(count["seconds"]))
    what = f"API writes at rest, {nodes} Nodes"
    detail = ", ".join(f"{number} {verb}" for verb, number in sorted(writes.items()))
    against = f"one Lease a Node every {_RENEW_SECONDS} s"
    return at_most(NAME, what, against, sum(writes.values()) / wanted, 1.05, TIMES, f"{detail} in {seconds:g} s")


def _load_rows(cluster: Cluster, pods: int, nodes: int, seconds: int) -> list[Row]:
    controller = cluster.controller
    others = _Cores([cluster.api.child, *cluster.agents])
    cluster.api.ask("count", 30)
    cpu = _Cores([controller])
    made, seen = cluster.measure(f"load {_EVENTS} {_KEPT} {_REMOVED} {seconds}", seconds + _SLACK_SECONDS)
    count = cluster.api.ask("count", 30)
    (used,), (api, *agents) = cpu.percent(), others.percent()
    answers = answer_times(made, seen)
    median, p99 = (percentile(answers, percent) for percent in (50, 99))
    what = f"{pods} pods, {nodes} agents and leases, {_EVENTS} pod events/s, {_KEPT + _REMOVED} deletions/s: "
    split = f"the stand-ins: API server {figure(api)} %, agents {figure(sum(agents))} %"
    answered = f"median {figure(median)} ms, longest {figure(max(answers))} ms of {len(answers)}"
    lag, longest = (float(str(seen[key])) for key in ("lag_p99_ms", "lag_max_ms"))
    gap = float(str(count["longest_gap_seconds"]))
    return [
        at_most(NAME, f"{what}CPU", "", used, 65, "% of a core", split),
        at_most(NAME, f"{what}peak memory", "", controller.peak_rss_bytes() / _MIB, 480, "MiB"),
        at_most(NAME, f"{what}event-loop lag p99", "", lag, 15, "ms"),
        at_most(NAME, f"{what}longest event-loop lag", "", longest, 50, "ms"),
        at_most(NAME, f"{what}deletion until the answer, p99", "", p99, 50, "ms", answered),
        at_most(NAME, f"{what}longest time between two renewals of a Lease", "", gap, 15, "s"),
    ]


class _Cores:
    """CPU of processes since it was made."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children
        self._before = [child.cpu_seconds() for child in children]
        self._started = time.monotonic()

    def percent(self) -> list[float]:
        """Return the share of one core that each used, in percent."""
        seconds = time.monotonic() - self._started
        now = [child.cpu_seconds() for child in self._children]
        return [100 * (after - before) / seconds for after, before in zip(now, self._before, strict=True)]
