"""The peer of a retention: nothing but the call, at the same spacing.

`python -m benchmarks.deletion_bare_rpc FILE` holds a channel to each agent in FILE (one address a line). Each line
`COUNT A_SECOND` of its standard input makes so many `RetainSnapshots`, evenly spaced, and is answered with the
milliseconds each took, as JSON.
"""

import asyncio
import gc
import itertools
import json
import sys
import time
from pathlib import Path

import grpc.aio

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

_RETAIN = "/cocoonstack.node.v1.SnapshotCache/RetainSnapshots"


async def _run(addresses: list[str]) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for address in addresses]
    calls = [
        channel.unary_unary(
            _RETAIN,
            request_serializer=pb.RetainSnapshotsRequest.SerializeToString,
            response_deserializer=pb.RetainSnapshotsResponse.FromString,
        )
        for channel in channels
    ]
    numbers = itertools.count()
    for call in calls:
        await call(_request(next(numbers)))
    gc.collect()
    gc.freeze()
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, a_second = (int(word) for word in line.split())
        print(json.dumps({"ms": await _measure(itertools.cycle(calls), numbers, count, a_second)}), flush=True)


async def _measure(
    calls: "itertools.cycle[object]", numbers: "itertools.count[int]", count: int, a_second: int
) -> list[float]:
    loop = asyncio.get_running_loop()
    took: list[float] = []

    async def measure(call: object) -> None:
        assert isinstance(call, grpc.aio.UnaryUnaryMultiCallable)
        started = time.perf_counter()
        await call(_request(next(numbers)))
        took.append((time.perf_counter() - started) * 1000)

    started = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            pause = started + number / a_second - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
            group.create_task(measure(next(calls)))
    return took


def _request(number: int) -> pb.RetainSnapshotsRequest:
    name = f"bare-{number}"
    owner = pb.Owner(pod_uid=name, namespace="bare", pod_name=name, vm_name=f"vk-bare-{name}", managed=True)
    return pb.RetainSnapshotsRequest(owner=owner, reason=pb.RETAIN_REASON_SEAT_RELEASE, cluster_id="stand-in")


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]).read_text().split()))
