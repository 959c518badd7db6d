"""Crowds, and callers who do not read their answers: nobody else is kept waiting by them."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships without types

from agent.rpc import guard
from agent.rpc.limits import LIMITS, Kind
from agent.snapshots.authority import PERSON
from agent.snapshots.cache_collect import MAX_WAITING, CollectedItem
from agent.snapshots.collection import Policy
from agent.snapshots.errors import TooManyRequestsError
from cocoonstack.node.v1 import node_resources_pb2 as node_pb
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.node_resources_pb2_grpc import NodeResourcesStub
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots.caching import DAY, CacheHost
from tests.agent.snapshots.serving import Served, changing, details
from tests.agent.snapshots.stores.harness import envelope, write_snapshot
from tests.support.waiting import wait_for_async

# A client that takes up little of what it does not read.
NARROW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
EVERYTHING = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=0))
ALLOWED = 1 + MAX_WAITING


async def prepare(host: CacheHost, count: int) -> None:
    """Have snapshots that a collection may take."""
    for number in range(count):
        host.write(f"vk-ns-p{number:03}")
    await host.sync()
    host.clock.pass_time(DAY + 1)
    await host.sync()


async def end_of(call: Any) -> str:  # noqa: ANN401  # a stream of any answer
    """Read to the end, and return the reason that ended it."""
    try:
        async for _message in call:
            pass
    except grpc.aio.AioRpcError as error:
        return details(error)[0]
    return "OK"


async def test_callers_who_read_nothing_leave_room_for_changes_and_lose_their_place(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F21: as many as there are places for changes ask for collections and read none of the answers."""
    monkeypatch.setattr(guard, "WRITE_SECONDS", 0.5)
    await prepare(served.host, 300)
    asked = pb.CollectGarbageRequest(policy=EVERYTHING.policy, dry_run=True)
    async with grpc.aio.insecure_channel(served.address, options=NARROW) as channel:
        calls: Any = SnapshotCacheStub(channel)
        unread = [calls.CollectGarbage(asked) for _ in range(LIMITS[Kind.CHANGE])]
        await wait_for_async(lambda: sum(call.done() for call in unread) >= len(unread) - ALLOWED, what="refusals")
        kept = await served.calls.RetainSnapshots(
            changing(pb.RetainSnapshotsRequest(owner=pb.Owner(pod_uid="uid-1", vm_name="vk-ns-p000"))), timeout=30
        )
        assert kept.outcome == pb.RETAIN_OUTCOME_RETAINED

        async def collected() -> bool:
            messages = [message async for message in served.calls.CollectGarbage(asked, timeout=30)]
            return bool(messages[-1].HasField("summary"))

        assert await wait_for_async(collected, what="a place", ignoring=(grpc.aio.AioRpcError,))
        ends = Counter([await end_of(call) for call in unread])
        assert ends == {"TOO_MANY_REQUESTS": len(unread) - ALLOWED, "ANSWER_NOT_READ": ALLOWED}


async def test_one_collection_runs_four_wait_and_no_fifth_does(host: CacheHost) -> None:
    """Also in the moment in which the turn is handed over and the lock is nobody's."""
    await prepare(host, 3)
    policy = Policy(keep_at_most=0)
    running = host.cache.collect(PERSON, policy=policy, dry_run=True)
    assert isinstance(await anext(running), CollectedItem)
    waiting = [asyncio.create_task(host.collect(policy, dry_run=True)) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequestsError):
        await host.collect(policy, dry_run=True)
    async for _step in running:
        pass
    await running.aclose()
    # The turn is free now and the first of those that wait has not run yet.
    fifth = asyncio.create_task(host.collect(policy, dry_run=True))
    sixth = asyncio.create_task(host.collect(policy, dry_run=True))
    outcomes = await asyncio.gather(*waiting, fifth, sixth, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, TooManyRequestsError)]
    assert len(refused) == 1
    assert isinstance(outcomes[-1], TooManyRequestsError)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path / "agent", "node-1", {"COCOON_NODE_STANDALONE": "true"})
    store = process.root / "snapshots"
    store.mkdir(parents=True)
    for number in range(60):
        write_snapshot(store, f"vk-ns-p{number:02}", metadata=envelope(f"vk-ns-p{number:02}", f"id-{number}"))
    process.start()
    yield process
    process.release()


def page(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        return str(answer.read(), "utf-8")


async def test_a_hundred_collections_at_once_leave_health_metrics_and_the_node_answered(agent: AgentProcess) -> None:
    """F21: five of them at most are there at a time, the rest is refused with a reason, and all is collected once."""
    async with grpc.aio.insecure_channel(agent.address) as channel:
        calls: Any = SnapshotCacheStub(channel)
        for number in range(60):
            owner = pb.Owner(vm_name=f"vk-ns-p{number:02}")
            await calls.RetainSnapshots(pb.RetainSnapshotsRequest(owner=owner))

        async def collect() -> tuple[str, int]:
            try:
                messages = [message async for message in calls.CollectGarbage(EVERYTHING, timeout=60)]
            except grpc.aio.AioRpcError as error:
                return details(error)[0], 0
            return "OK", messages[-1].summary.removed_count

        crowd = asyncio.gather(*(collect() for _ in range(100)))
        answered = 0
        while not crowd.done() or not answered:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            report = await NodeResourcesStub(channel).GetNodeResources(node_pb.GetNodeResourcesRequest(), timeout=30)
            assert report.report.node_name == "node-1"
            assert "cocoon_node_snapshots_collected_total" in await asyncio.to_thread(page, agent.http_address)
            answered += 1
        outcomes = await crowd
    reasons = Counter(reason for reason, _ in outcomes)
    assert set(reasons) <= {"OK", "TOO_MANY_REQUESTS"}
    assert reasons["TOO_MANY_REQUESTS"] > 0
    assert sum(removed for _, removed in outcomes) == 60
