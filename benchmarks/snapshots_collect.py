"""What callers of `GetNodeResources` notice while thousands of snapshots are collected."""

import time

import grpc

from benchmarks import go_programs
from benchmarks.agent_process import Served, agent
from benchmarks.harness import TIMES, Row, Scale, at_most, figure
from benchmarks.processes import BenchmarkError, Child
from benchmarks.snapshot_calls import call, disk_directory, pages, retain_requests
from benchmarks.snapshot_files import write_snapshots
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

NAME = "snapshot-collect"
_COLLECT = "/cocoonstack.node.v1.SnapshotCache/CollectGarbage"
_SECONDS = 600


def run(scale: Scale) -> list[Row]:
    """Return the row for the 99th percentile during one collection, against the same caller before it.

    One collection a run: it cannot be taken in turns, because afterwards everything is gone.
    """
    count, seconds = scale.pick(10_000, 1_000), scale.pick(5, 2)
    with disk_directory() as directory:
        write_snapshots(directory / "root" / "snapshots", count)
        with agent({"COCOON_NODE_STANDALONE": "true"}, directory=directory) as server:
            call(server.address, "RetainSnapshots", retain_requests(0, count))
            with _load(server) as caller:
                time.sleep(seconds)
                idle = _p99_us(caller)
            with _load(server) as caller:
                summary, took = _collect(server.address)
                busy = _p99_us(caller)
            left = pages(server.address, 1000, 1)["snapshots"]
    if summary.removed_count != count or left != 0:
        raise BenchmarkError(f"{summary.removed_count} of {count} collected, {left} left: {summary.deferred_reason}")
    detail = f"{figure(busy)} µs against {figure(idle)} µs; {count} collected in {took:.1f} s"
    what = f"GetNodeResources p99 while {count} snapshots are collected"
    return [at_most(NAME, what, "idle", busy / idle, 3, TIMES, detail)]


def _load(server: Served) -> Child:
    """Return a caller that goes on until it is asked to end."""
    options = ["-callers=1", f"-seconds={_SECONDS}", "-warm-up=0.1", "-pause=1ms"]
    return Child([str(go_programs.build("client")), "load", f"-target={server.address}", *options])


def _p99_us(caller: Child) -> float:
    caller.ask_to_end()
    return float(str(caller.read_json(30)["p99_us"]))


def _collect(address: str) -> tuple[pb.CollectionSummary, float]:
    request = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=0))
    started = time.monotonic()
    summary = pb.CollectionSummary()
    with grpc.insecure_channel(address) as channel:
        collect = channel.unary_stream(
            _COLLECT, pb.CollectGarbageRequest.SerializeToString, pb.CollectGarbageResponse.FromString
        )
        for response in collect(request, timeout=_SECONDS):
            if response.HasField("summary"):
                summary = response.summary
    return summary, time.monotonic() - started
