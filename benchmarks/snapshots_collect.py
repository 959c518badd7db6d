"""What callers of `GetNodeResources` notice while thousands of snapshots are collected."""

import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from benchmarks import go_programs
from benchmarks.agent_process import Served, agent
from benchmarks.harness import TIMES, Row, Scale, at_most, figure
from benchmarks.processes import BenchmarkError, output_of
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
        with agent({"COCOON_NODE_STANDALONE": "true"}, directory=directory) as server, ThreadPoolExecutor() as pool:
            call(server.address, "RetainSnapshots", retain_requests(0, count))
            idle = _p99_us(server, seconds)
            running = pool.submit(_collect, server.address)
            meanwhile: list[float] = []
            while not running.done():
                meanwhile.append(_p99_us(server, 1))
            summary, took = running.result()
            left = pages(server.address, 1000, 1)["snapshots"]
    if summary.removed_count != count or left != 0:
        raise BenchmarkError(f"{summary.removed_count} of {count} collected, {left} left: {summary.deferred_reason}")
    # The last second may have run on after the collection's end.
    busy = max(meanwhile[:-1] or meanwhile)
    detail = f"{figure(busy)} µs in the worst second against {figure(idle)} µs; {count} collected in {took:.1f} s"
    what = f"GetNodeResources p99 while {count} snapshots are collected"
    return [at_most(NAME, what, "idle", busy / idle, 3, TIMES, detail)]


def _p99_us(server: Served, seconds: float) -> float:
    client = str(go_programs.build("client"))
    options = ["-callers=1", f"-seconds={seconds}", "-warm-up=0.1", "-pause=1ms"]
    return float(str(output_of([client, "load", f"-target={server.address}", *options], seconds + 30)["p99_us"]))


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
