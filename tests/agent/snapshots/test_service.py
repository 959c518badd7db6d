"""The calls over gRPC: messages, errors with reasons, pages, the watch, what a slow or leaving client does."""

# ruff: noqa: ANN401  # stubs and messages of every call pass through here

from __future__ import annotations

import random
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from agent.snapshots import service as service_module
from agent.snapshots.stores.identity import MARKER_FILE
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from tests.agent.snapshots.serving import Served, changing, details
from tests.agent.snapshots.stores.harness import tree

OWNER = pb.Owner(pod_uid="uid-1", namespace="ns", pod_name="web", vm_name="vk-ns-web", managed=True)
NAMES = [f"vk-ns-p{number}" for number in range(5)]


async def read_to_the_end(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass


async def test_pages_are_complete_and_bound_to_their_filters(served: Served) -> None:
    for name in (*NAMES, "ubuntu"):
        served.host.write(name)
    await served.host.cache.look()
    names: list[str] = []
    token = ""
    while True:
        page = await served.calls.ListSnapshots(pb.ListSnapshotsRequest(page_size=2, page_token=token))
        names += [snapshot.name for snapshot in page.snapshots]
        assert page.total_size == 6
        token = page.next_page_token
        if not token:
            break
        first_token = token
    assert names == ["ubuntu", *NAMES]
    shared = await served.calls.ListSnapshots(pb.ListSnapshotsRequest(states=[pb.SNAPSHOT_STATE_SHARED]))
    assert ([one.name for one in shared.snapshots], shared.total_size) == (["ubuntu"], 1)
    one = await served.calls.ListSnapshots(pb.ListSnapshotsRequest(vm_name=NAMES[0]))
    assert [snapshot.name for snapshot in one.snapshots] == NAMES[:1]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.calls.ListSnapshots(pb.ListSnapshotsRequest(page_token=first_token, vm_name="x"))
    assert details(refused.value)[2] == ["page_token"]


@pytest.mark.parametrize(
    ("call", "request_", "code", "reason", "fields"),
    [
        ("ListSnapshots", pb.ListSnapshotsRequest(page_size=-1), "INVALID_ARGUMENT", "INVALID_FIELD", ["page_size"]),
        ("GetSnapshot", pb.GetSnapshotRequest(name="../x"), "INVALID_ARGUMENT", "INVALID_NAME", ["name"]),
        ("GetSnapshot", pb.GetSnapshotRequest(name="none"), "NOT_FOUND", "SNAPSHOT_NOT_FOUND", []),
        (
            "VerifySnapshot",
            pb.VerifySnapshotRequest(name="vk-ns-web", expected_snapshot_id="other"),
            "FAILED_PRECONDITION",
            "SNAPSHOT_ID_MISMATCH",
            [],
        ),
        (
            "PurgeSnapshots",
            pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name="-rf")),
            "INVALID_ARGUMENT",
            "INVALID_NAME",
            ["owner.vm_name"],
        ),
        ("PurgeSnapshots", pb.PurgeSnapshotsRequest(), "INVALID_ARGUMENT", "INVALID_NAME", ["owner.vm_name"]),
        (
            "PurgeSnapshots",
            changing(pb.PurgeSnapshotsRequest(owner=OWNER, force=True)),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["force"],
        ),
        (
            "RetainSnapshots",
            pb.RetainSnapshotsRequest(owner=OWNER, ttl=Duration(seconds=-1)),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["ttl"],
        ),
        (
            "CollectGarbage",
            pb.CollectGarbageRequest(policy=pb.CollectionPolicy(max_bytes=-1)),
            "INVALID_ARGUMENT",
            "INVALID_FIELD",
            ["policy.max_bytes"],
        ),
    ],
)
async def test_errors_have_a_code_a_reason_and_a_field(
    served: Served, call: str, request_: Any, code: str, reason: str, fields: list[str]
) -> None:
    """F26: the value is named, cut, and nothing was touched."""
    served.host.write("vk-ns-web")
    answer = getattr(served.calls, call)(request_)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (answer.read() if call == "CollectGarbage" else answer)
    assert refused.value.code().name == code
    found = details(refused.value)
    assert (found[0], found[2]) == (reason, fields)
    assert "Traceback" not in (refused.value.details() or "")
    assert served.host.on_disk("vk-ns-web")


async def test_a_life_from_sync_to_purge(served: Served) -> None:
    served.host.write("vk-ns-web", "id-1")
    calls = served.calls
    sync = changing(pb.SyncOwnersRequest(owners=[OWNER], sync_revision=1))
    assert not (await calls.SyncOwners(sync)).unclaimed_snapshots
    kept = await calls.RetainSnapshots(
        changing(pb.RetainSnapshotsRequest(owner=OWNER, reason=pb.RETAIN_REASON_SEAT_RELEASE, backup_verified=True))
    )
    assert kept.outcome == pb.RETAIN_OUTCOME_RETAINED
    reply = await calls.SyncOwners(changing(pb.SyncOwnersRequest(sync_revision=2)))
    (snapshot,) = reply.unclaimed_snapshots
    assert (snapshot.snapshot_id, snapshot.state) == ("id-1", pb.SNAPSHOT_STATE_RETAINED)
    assert snapshot.owner == OWNER
    assert snapshot.retention.owner == OWNER
    assert snapshot.retention.backup_verified
    assert not snapshot.retention.HasField("expire_time")
    purge = changing(pb.PurgeSnapshotsRequest(owner=OWNER, reason=pb.PURGE_REASON_TEARDOWN, sync_revision=2))
    assert (await calls.PurgeSnapshots(purge)).results[0].outcome == pb.PURGE_OUTCOME_SKIPPED_RETAINED
    release = changing(pb.ReleaseRetentionRequest(owner=OWNER, reason=pb.RELEASE_REASON_SET_DELETED))
    assert [one.name for one in (await calls.ReleaseRetention(release)).snapshots] == ["vk-ns-web"]
    assert (await calls.PurgeSnapshots(purge)).results[0].outcome == pb.PURGE_OUTCOME_PURGED
    assert (await calls.PurgeSnapshots(purge)).results[0].outcome == pb.PURGE_OUTCOME_NOTHING_TO_PURGE
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await calls.SyncOwners(changing(pb.SyncOwnersRequest(sync_revision=9), epoch=0))
    assert details(refused.value)[:2] == ("STALE_CONTROLLER_EPOCH", {"highest_epoch": "1"})


async def test_usage_names_every_state_once(served: Served) -> None:
    served.host.write("vk-ns-web")
    await served.host.cache.look()
    usage = await served.calls.GetCacheUsage(pb.GetCacheUsageRequest())
    assert sorted(one.state for one in usage.states) == list(range(1, 8))
    assert sum(one.count for one in usage.states) == 1
    assert 0 < usage.filesystem_available_bytes < usage.filesystem_total_bytes
    assert (usage.high_watermark_percent, usage.low_watermark_percent) == (85, 80)
    assert not usage.HasField("sync_time")


async def test_a_watch_sends_all_then_synced_then_changes_with_growing_revisions(served: Served) -> None:
    for name in NAMES:
        served.host.write(name)
    await served.host.cache.look()
    watch = served.calls.WatchSnapshots(pb.WatchSnapshotsRequest())
    first = [await watch.read() for _ in range(len(NAMES) + 1)]
    assert [event.snapshot.name for event in first[:-1]] == NAMES
    assert first[-1].type == pb.SNAPSHOT_EVENT_TYPE_SYNCED
    served.host.write("vk-ns-new")
    served.host.delete(NAMES[0])
    await served.host.cache.look()
    events: list[Any] = []
    while len(events) < 2:
        event = await watch.read()
        if event.type != pb.SNAPSHOT_EVENT_TYPE_HEARTBEAT:
            events.append(event)
    kinds = {event.snapshot.name: event.type for event in events}
    assert kinds == {"vk-ns-new": pb.SNAPSHOT_EVENT_TYPE_UPSERTED, NAMES[0]: pb.SNAPSHOT_EVENT_TYPE_REMOVED}
    assert first[-1].revision < events[0].revision < events[1].revision
    heartbeat = await watch.read()
    assert heartbeat.type == pb.SNAPSHOT_EVENT_TYPE_HEARTBEAT
    watch.cancel()


async def test_a_watch_ends_when_the_store_is_not_there_any_more(served: Served) -> None:
    """F5."""
    watch = served.calls.WatchSnapshots(pb.WatchSnapshotsRequest())
    assert (await watch.read()).type == pb.SNAPSHOT_EVENT_TYPE_SYNCED
    (served.host.root / MARKER_FILE).rename(served.host.base / "hidden")
    with pytest.raises(grpc.aio.AioRpcError):
        await served.calls.ListSnapshots(pb.ListSnapshotsRequest())
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await read_to_the_end(watch)
    assert details(ended.value)[0] == "STORE_UNAVAILABLE"


async def test_watches_end_when_the_service_closes_and_leave_nothing_behind(served: Served) -> None:
    watch = served.calls.WatchSnapshots(pb.WatchSnapshotsRequest())
    await watch.read()
    left = served.calls.WatchSnapshots(pb.WatchSnapshotsRequest())
    await left.read()
    left.cancel()
    served.service.close()
    while (event := await watch.read()) is not grpc.aio.EOF:
        assert event.type == pb.SNAPSHOT_EVENT_TYPE_HEARTBEAT
    assert await watch.code() is grpc.StatusCode.OK


async def test_a_collection_streams_its_items_and_ends_with_a_summary(served: Served) -> None:
    for name in NAMES:
        served.host.write(name)
    await served.host.sync()
    served.host.clock.pass_time(25 * 3600)
    await served.host.sync()
    request = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=2), dry_run=True)
    messages = [message async for message in served.calls.CollectGarbage(request)]
    assert [message.WhichOneof("event") for message in messages] == ["item"] * 3 + ["summary"]
    assert messages[-1].summary.dry_run
    assert messages[-1].summary.removed_bytes == sum(message.item.bytes for message in messages[:-1])
    assert all(served.host.on_disk(name) for name in NAMES)


async def test_an_answer_too_long_for_a_message_says_so_and_the_list_has_the_rest(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No reply is refused by the client for its size, and nothing is left out unsaid."""
    monkeypatch.setattr(service_module, "MAX_REPLY_BYTES", 700)
    names = sorted(f"vk-ns-p{number:02}" for number in range(12))
    for name in names:
        served.host.write(name)
    sync = changing(pb.SyncOwnersRequest(sync_revision=1))
    reply = await served.calls.SyncOwners(sync)
    assert reply.truncated
    assert 0 < len(reply.unclaimed_snapshots) < len(names)
    assert reply.ByteSize() <= 1000
    assert await served.calls.SyncOwners(sync) == reply
    listed: list[str] = []
    request = pb.ListSnapshotsRequest(page_size=1000, states=[pb.SNAPSHOT_STATE_UNCLAIMED])
    while True:
        page = await served.calls.ListSnapshots(request)
        assert page.ByteSize() <= 700
        assert page.total_size == len(names)
        listed += [snapshot.name for snapshot in page.snapshots]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert listed == names


async def refused_with(answer: Any) -> tuple[str, str] | None:
    """Return code and reason of a call that is refused; None for one that is answered."""
    try:
        await answer
    except grpc.aio.AioRpcError as error:
        if len(error.details() or "") > 500:
            raise
        return error.code().name, details(error)[0]
    return None


@pytest.mark.parametrize("call", ["GetSnapshot", "VerifySnapshot", "RetainSnapshots", "PurgeSnapshots"])
async def test_any_name_is_answered_in_order_or_refused_with_a_type(served: Served, call: str) -> None:
    """F26: whatever text a message can carry, as a name; the store is afterwards what it was."""
    for name in ("vk-ns-web", "ubuntu"):
        served.host.write(name)
    (served.host.base / "outside").mkdir()
    (served.host.root / "link").symlink_to(served.host.base / "outside")
    await served.host.sync()
    before = tree(served.host.base / "snapshots")
    seen = {"OK": 0, "refused": 0}
    for name in NAMES_FROM_A_FUZZER:
        owner = pb.Owner(vm_name=name)
        request = {
            "GetSnapshot": pb.GetSnapshotRequest(name=name),
            "VerifySnapshot": pb.VerifySnapshotRequest(name=name),
            "RetainSnapshots": pb.RetainSnapshotsRequest(owner=owner),
            "PurgeSnapshots": pb.PurgeSnapshotsRequest(owner=owner),
        }[call]
        refusal = await refused_with(getattr(served.calls, call)(request))
        seen["refused" if refusal else "OK"] += 1
        assert refusal in (None, ("INVALID_ARGUMENT", "INVALID_NAME"), ("NOT_FOUND", "SNAPSHOT_NOT_FOUND")), name
    assert seen["refused"] > len(NAMES_FROM_A_FUZZER) // 2
    assert tree(served.host.base / "snapshots") == before


def _names_from_a_fuzzer(count: int) -> list[str]:
    """Return names made of the pieces that break things, always the same ones."""
    choice = random.Random(26)  # noqa: S311  # which pieces
    pieces = [
        *("../", "..", ".", "/", "//", "\\", "-", "--", "-rf", "~", "*", "?", "$(id)", "`id`", "%00", "\0", "\n", "\r"),
        *("\t", " ", "\x7f", "\x1b[31m", "\u202e", "\u2024\u2024", "\uff0e\uff0e", "\u0430", "é", "e\u0301", "\ufeff"),
        *("vk-", "fork-", "vk-ns-", "web", "ubuntu", "link", ".pending-", ".cocoon-node-store", ".cocoon-node-trash"),
        *("a" * 60, "a" * 300, "snapshot.json", ":latest", "@sha256:", "CON", "\U0001f600", "\ue000", "0"),
    ]
    made = ["".join(choice.choices(pieces, k=choice.randint(1, 5))) for _ in range(count)]
    return [name for name in made if name not in ("vk-ns-web", "ubuntu")]


NAMES_FROM_A_FUZZER = _names_from_a_fuzzer(400)


async def test_a_collection_whose_answer_nobody_reads_holds_nobody_up(served: Served) -> None:
    """F21: it goes on to its end, and the next one has its turn; a caller who leaves ends it after the item."""
    for number in range(100):
        served.host.write(f"vk-ns-p{number:03}")
    await served.host.sync()
    served.host.clock.pass_time(25 * 3600)
    await served.host.sync()
    narrow = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with grpc.aio.insecure_channel(served.address, options=narrow) as channel:
        half = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=50))
        narrow_calls: Any = SnapshotCacheStub(channel)
        unread = narrow_calls.CollectGarbage(half)
        first = await unread.read()
        assert first.HasField("item")
        next_one = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=10))
        messages = [message async for message in served.calls.CollectGarbage(next_one, timeout=30)]
        assert messages[-1].summary.removed_count == 40
        rest = [first]
        while (message := await unread.read()) is not grpc.aio.EOF:
            rest.append(message)
        assert rest[-1].summary.removed_count == len(rest) - 1 == 50
    left = served.calls.CollectGarbage(pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=0)))
    left.cancel()
    last = served.calls.CollectGarbage(pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=0)), timeout=30)
    assert [message async for message in last][-1].HasField("summary")
    assert not [path for path in served.host.root.iterdir() if path.name.startswith("vk-")]
