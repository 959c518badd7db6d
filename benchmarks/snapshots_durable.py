"""How fast a promise is made and a name is free: retain and purge against a bare RPC with the same durable step."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.agent_process import agent
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import BenchmarkError, Child, free_port, python, wait_for_port
from benchmarks.snapshot_calls import call, disk_directory, pages, purge_requests, retain_requests, sync_request
from benchmarks.snapshot_files import snapshot_name, write_full_snapshots, write_snapshots
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

NAME = "snapshot-durable"
_LARGE_BYTES = 1 << 30


def run(scale: Scale) -> list[Row]:
    """Return the rows for retain and for purge, small snapshots first, then large ones.

    The peer of the large ones makes as few calls as they: of four calls more are the first of their kind than of two
    hundred. What it renames is small, which makes no difference to it.
    """
    calls, large = scale.pick(200, 40), scale.pick(4, 2)
    needed = calls * scale.rounds
    with disk_directory() as directory, disk_directory() as peer_directory:
        ours, theirs = directory / "root" / "snapshots", peer_directory / "snapshots"
        for store in (ours, theirs):
            write_snapshots(store, 2 * needed)
        write_full_snapshots(ours, large * scale.rounds, first=2 * needed, size_bytes=_LARGE_BYTES)
        write_snapshots(theirs, large * scale.rounds, first=2 * needed)
        (peer_directory / "trash").mkdir()
        with agent(directory=directory) as server, _bare_cache(peer_directory) as peer:
            _wait_known(server.address, 2 * needed + large * scale.rounds)
            retains = take_turns(scale.rounds, _Retain(server.address, 0, calls).run, _Retain(peer, 0, calls).run)
            call(server.address, "SyncOwners", [sync_request()])
            small = take_turns(scale.rounds, _Purge(server.address, needed, calls).run, _Purge(peer, needed, calls).run)
            huge = take_turns(
                scale.rounds, _Purge(server.address, 2 * needed, large).run, _Purge(peer, 2 * needed, large).run
            )
    step = "a bare RPC with"
    return [
        _row(f"retain answered, median of {calls}", f"{step} one SQLite commit (FULL)", *retains),
        _row(f"purge answered, median of {calls}", f"{step} rename and directory fsync", *small),
        _row(f"purge of snapshots of 1 GiB answered, median of {large}", f"{step} rename and directory fsync", *huge),
    ]


def _row(what: str, against: str, ours: list[float], peers: list[float]) -> Row:
    return at_most(NAME, what, against, median_ratio(ours, peers), 2, TIMES, compared("µs", ours, peers))


class _Retain:
    """Rounds of retains, each on the next snapshots."""

    def __init__(self, address: str, first: int, count: int) -> None:
        self._address, self._next, self._count = address, first, count

    def run(self) -> float:
        """Return the median latency of a round, in microseconds."""
        took, last = call(self._address, "RetainSnapshots", retain_requests(self._next, self._count))
        self._next += self._count
        if last and pb.RetainSnapshotsResponse.FromString(last).outcome != pb.RETAIN_OUTCOME_RETAINED:
            raise BenchmarkError("a retain did not retain")
        return statistics.median(took)


class _Purge:
    """Rounds of purges, each on the next snapshots."""

    def __init__(self, address: str, first: int, count: int) -> None:
        self._address, self._next, self._count = address, first, count

    def run(self) -> float:
        """Return the median latency of a round, in microseconds."""
        took, last = call(self._address, "PurgeSnapshots", purge_requests(self._next, self._count))
        self._next += self._count
        if last:
            results = pb.PurgeSnapshotsResponse.FromString(last).results
            if [result.outcome for result in results] != [pb.PURGE_OUTCOME_PURGED]:
                raise BenchmarkError(f"a purge did not remove {snapshot_name(self._next - 1)}: {results}")
        return statistics.median(took)


@contextmanager
def _bare_cache(directory: Path) -> Iterator[str]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with Child(python("-m", "benchmarks.bare_cache", address, str(directory))) as child:
        wait_for_port(child, port, 30)
        yield address


def _wait_known(address: str, count: int) -> None:
    deadline = time.monotonic() + 120
    while (known := pages(address, 1000, 1)["snapshots"]) != count:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the agent lists {known} of {count} snapshots")
        time.sleep(0.2)
