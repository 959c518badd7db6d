"""From the DELETED event to the agent's answer that the snapshots are kept, 500 times a second.

The pods carry the keep flag from the start, so a deletion is one event. The clock starts when the stand-in API server
writes it and stops when the controller has the agent's answer. The peer makes the same call to the same agents at the
same spacing and does nothing else; the controller has then done all that the deletions led to. Both leave every promise
in the agents, as in a fleet.
"""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.deletion_cluster import Cluster, answer_times, deletion_cluster
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, figure, median_ratio, percentile, take_turns
from benchmarks.processes import Child, python

NAME = "deletion-answer"
_A_SECOND = 500
_SECONDS = 120.0


def run(scale: Scale) -> list[Row]:
    """Return the rows for the median against the peer's, and for the tail."""
    nodes, deletions = scale.pick(1000, 100), scale.pick(2500, 500)
    kept = deletions * scale.rounds
    with (
        deletion_cluster(20 * nodes, nodes, kept, processes=2, flagged=True) as cluster,
        TemporaryDirectory(prefix="cocoon-benchmark-") as made,
    ):
        targets = Path(made) / "targets"
        targets.write_text("".join(f"127.0.0.1:{port}\n" for port in cluster.ports.values()))
        with Child(python("-m", "benchmarks.deletion_bare_rpc", str(targets))) as peer:
            peer.read_json(_SECONDS)
            ours, bare = take_turns(scale.rounds, lambda: _delete(cluster, deletions), lambda: _bare(peer, deletions))
    medians, bare_medians = ([median(round_) for round_ in side] for side in (ours, bare))
    tails, bare_tails = ([percentile(round_, 99) for round_ in side] for side in (ours, bare))
    what = f"DELETED event until the retention is answered, {_A_SECOND} events/s: "
    tail = f"{compared('ms', tails, bare_tails)}; longest {figure(max(map(max, ours)))} ms"
    return [
        at_most(
            NAME,
            f"{what}median",
            "the call alone, same spacing",
            median_ratio(medians, bare_medians),
            1.5,
            TIMES,
            compared("ms", medians, bare_medians),
        ),
        at_most(NAME, f"{what}p99", "", median(tails), 10, "ms", tail),
    ]


def _delete(cluster: Cluster, count: int) -> list[float]:
    """Delete so many pods and return the milliseconds until each one's answer."""
    times = answer_times(*cluster.measure(f"delete {count} {_A_SECOND}", _SECONDS))
    cluster.wait_quiet()
    return times


def _bare(peer: Child, count: int) -> list[float]:
    peer.tell(f"{count} {_A_SECOND}")
    took = peer.read_json(_SECONDS)["ms"]
    assert isinstance(took, list)
    return took
