"""The use cases of the cache on a real store and ledger: what each call does, and what survives a restart."""

import asyncio
from dataclasses import replace

import pytest

from agent.snapshots.authority import PERSON, Caller
from agent.snapshots.cache_collect import CollectionOutcome
from agent.snapshots.cache_settings import CacheSettings, CollectionMode
from agent.snapshots.collection import Policy
from agent.snapshots.errors import (
    InvalidFieldError,
    InvalidNameError,
    SnapshotIdMismatchError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    StaleControllerEpochError,
    StaleOwnerSyncError,
    StoreUnavailableError,
    TooManyRequestsError,
    WrongClusterError,
    WrongNodeError,
)
from agent.snapshots.names import MAX_NAME_CHARACTERS
from agent.snapshots.stores.identity import MARKER_FILE
from common.snapshot_words import Owner, PurgeOutcome, RetainOutcome, RetainReason
from tests.agent.snapshots.caching import CLUSTER, DAY, HOUR, CacheHost, pod
from tests.agent.snapshots.stores.harness import write_snapshot

WEB = pod("ns", "web")
VM = WEB.vm_name


async def test_the_snapshots_of_a_deleted_pod_are_purged(host: CacheHost) -> None:
    host.write(VM)
    host.write(f"fork-{VM}")
    await host.sync(WEB)
    assert await host.purge(WEB) == {
        VM: PurgeOutcome.SKIPPED_IN_USE,
        f"fork-{VM}": PurgeOutcome.SKIPPED_IN_USE,
    }
    reply = await host.sync()
    assert [(record.name, record.facts.owner) for record in reply.unclaimed] == [(f"fork-{VM}", WEB), (VM, WEB)]
    assert await host.purge(WEB) == {VM: PurgeOutcome.PURGED, f"fork-{VM}": PurgeOutcome.PURGED}
    assert not host.on_disk(VM)
    assert await host.purge(WEB) == {VM: PurgeOutcome.NOTHING_TO_PURGE}


async def test_a_retention_outlives_purges_restarts_and_crashes(host: CacheHost) -> None:
    host.write(VM)
    await host.sync(WEB)
    assert await host.retain(WEB) is RetainOutcome.RETAINED
    await host.crash()
    await host.sync()
    assert await host.state(VM) == "RETAINED"
    assert await host.purge(WEB) == {VM: PurgeOutcome.SKIPPED_RETAINED}
    await host.restart()
    await host.sync()
    assert await host.purge(WEB) == {VM: PurgeOutcome.SKIPPED_RETAINED}
    assert await host.release(WEB) == [VM]
    assert await host.release(WEB) == []
    assert await host.state(VM) == "UNCLAIMED"
    assert await host.purge(WEB) == {VM: PurgeOutcome.PURGED}


async def test_the_flag_of_the_last_sync_keeps_without_any_call(host: CacheHost) -> None:
    """F18: also when the agent restarts between the two syncs."""
    host.write(VM)
    await host.sync(replace(WEB, keep_on_delete=True))
    await host.crash()
    reply = await host.sync()
    assert [(record.name, record.state.name) for record in reply.unclaimed] == [(VM, "RETAINED")]
    assert reply.unclaimed[0].facts.retentions[0].owner.pod_uid == WEB.pod_uid


async def test_a_flag_taken_back_keeps_nothing(host: CacheHost) -> None:
    """F19."""
    host.write(VM)
    await host.sync(replace(WEB, keep_on_delete=True))
    await host.sync(WEB)
    await host.sync()
    assert await host.state(VM) == "UNCLAIMED"


async def test_the_next_pod_supersedes_a_retention(host: CacheHost) -> None:
    host.write(VM)
    await host.sync(WEB)
    await host.retain(WEB)
    await host.sync(replace(WEB, pod_uid="uid-next"))
    assert await host.state(VM) == "IN_USE"
    assert await host.retain(WEB) is RetainOutcome.SUPERSEDED
    await host.restart()
    assert await host.retain(WEB) is RetainOutcome.SUPERSEDED
    await host.sync()
    assert await host.state(VM) == "UNCLAIMED"


async def test_a_late_purge_never_reaches_what_the_next_pod_made(host: CacheHost) -> None:
    """F32: the agent was away, the pod came again under its name and hibernated again."""
    host.write(VM)
    await host.sync()
    host.write(VM)
    assert await host.purge(WEB) == {VM: PurgeOutcome.SKIPPED_NEWER}
    await host.sync(replace(WEB, pod_uid="uid-next"))
    await host.sync()
    assert await host.purge(WEB, revision=1) == {VM: PurgeOutcome.SKIPPED_NEWER}
    assert host.on_disk(VM)
    assert await host.purge(WEB, revision=3) == {VM: PurgeOutcome.PURGED}


async def test_a_repeated_sync_answers_the_same_and_sees_nothing_new(host: CacheHost) -> None:
    await host.sync()
    host.write(VM)
    await host.sync(revision=1)
    assert await host.purge(WEB, revision=1) == {VM: PurgeOutcome.SKIPPED_NEWER}
    with pytest.raises(StaleOwnerSyncError):
        await host.sync(WEB, revision=1)


@pytest.mark.parametrize(
    ("first", "second"), [(pod("a-b", "c"), pod("a", "b-c")), (pod("ns", "b-0"), pod("ns", "b-0-0"))]
)
async def test_pods_with_names_alike_never_touch_each_others(host: CacheHost, first: Owner, second: Owner) -> None:
    """F29."""
    host.write(first.vm_name)
    await host.sync(first)
    await host.sync()
    outcomes = await host.purge(second)
    assert set(outcomes.values()) <= {PurgeOutcome.SKIPPED_FOREIGN, PurgeOutcome.NOTHING_TO_PURGE}
    assert host.on_disk(first.vm_name)


@pytest.mark.parametrize(
    "claimant",
    [
        pod("evil", "p", vm_name=VM),
        pod("evil", "p", vm_name="ubuntu"),
        pod("evil", "p", vm_name="../x"),
        pod("ns", "web", managed=False),
    ],
    ids=["another's VM", "an image", "no name at all", "unmanaged"],
)
async def test_a_foreign_name_is_never_purged_or_collected(host: CacheHost, claimant: Owner) -> None:
    """F31: an impossible name never fails the sync either."""
    host.write(VM)
    host.write("ubuntu")
    await host.sync(claimant)
    await host.sync()
    if claimant.vm_name == VM:
        assert await host.purge(claimant) == {VM: PurgeOutcome.SKIPPED_FOREIGN}
    else:
        with pytest.raises(InvalidNameError):
            await host.purge(claimant)
    host.clock.pass_time(30 * DAY)
    await host.sync()
    items, _ = await host.collect(Policy(keep_at_most=0))
    assert [item.name for item in items] == ([] if claimant.vm_name == VM else [VM])
    assert host.on_disk("ubuntu")


async def test_a_foreign_name_may_be_retained(host: CacheHost) -> None:
    custom = pod("ns", "web", vm_name="my-vm")
    host.write("my-vm")
    await host.sync(custom)
    assert await host.retain(custom) is RetainOutcome.RETAINED


@pytest.mark.parametrize(
    "name", ["../x", "a/b", "-rf", "", "vk-A", "vk-\u0430-b", "vk-a\x00", "vk-" + "a" * 300, "ubuntu"]
)
async def test_impossible_names_are_refused_before_anything_is_touched(host: CacheHost, name: str) -> None:
    """F26."""
    assert len("vk-" + "a" * 300) > MAX_NAME_CHARACTERS
    await host.sync()
    with pytest.raises(InvalidNameError):
        await host.purge(pod("ns", "web", vm_name=name))
    if name != "ubuntu" and name != "vk-A":
        with pytest.raises(InvalidNameError):
            await host.retain(pod("ns", "web", vm_name=name))


async def test_a_person_names_what_goes(host: CacheHost) -> None:
    """Without any sync; in use stays, retained needs force, what is being written is skipped with a reason (F23)."""
    host.write(VM)
    (host.root / f".pending-fork-{VM}").mkdir()
    assert await host.purge_by_person(VM) == {
        f".pending-fork-{VM}": PurgeOutcome.SKIPPED_PENDING,
        VM: PurgeOutcome.PURGED,
    }
    host.write(VM)
    await host.cache.look()
    await host.retain(replace(WEB, pod_uid=""), PERSON, reason=RetainReason.REQUESTED)
    assert (await host.purge_by_person(VM))[VM] is PurgeOutcome.SKIPPED_RETAINED
    assert (await host.purge_by_person(VM, force=True))[VM] is PurgeOutcome.PURGED
    host.write(VM)
    await host.sync(WEB)
    assert (await host.purge_by_person(VM, force=True))[VM] is PurgeOutcome.SKIPPED_IN_USE


async def test_a_dry_run_tells_and_removes_nothing(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    assert await host.purge(WEB, dry_run=True) == {VM: PurgeOutcome.PURGED}
    assert host.on_disk(VM)


async def test_a_purge_without_a_recent_sync_of_this_start_is_deferred(host: CacheHost) -> None:
    host.write(VM)
    assert await host.purge(WEB, revision=1) == {VM: PurgeOutcome.DEFERRED}
    await host.sync()
    host.clock.pass_time(901)
    assert await host.purge(WEB) == {VM: PurgeOutcome.DEFERRED}
    await host.sync()
    await host.restart()
    results = await host.purge_results(WEB)
    assert [(one.outcome, one.deferred_reason) for one in results] == [(PurgeOutcome.DEFERRED, "OWNER_SYNC_BEHIND")]


async def test_only_the_newest_controller_of_the_right_cluster_changes_anything(host: CacheHost) -> None:
    """F33: keeping is taken from any epoch, of this cluster; a stale leader is told the highest epoch."""
    host.write(VM)
    await host.sync(caller=Caller(5, CLUSTER))
    old, other = Caller(4, CLUSTER), Caller(9, "cluster-2")
    for call in (host.sync(caller=old), host.purge(WEB, old), host.release(WEB, old), host.collect(caller=old)):
        with pytest.raises(StaleControllerEpochError) as refused:
            await call
        assert refused.value.metadata == {"highest_epoch": "5"}
    assert await host.retain(WEB, old) is RetainOutcome.RETAINED
    for refused_call in (
        host.sync(caller=other),
        host.retain(WEB, other),
        host.purge(WEB, other),
        host.release(WEB, other),
        host.collect(caller=other),
    ):
        with pytest.raises(WrongClusterError):
            await refused_call
    await host.restart()
    with pytest.raises(StaleControllerEpochError):
        await host.sync(caller=old, revision=100)
    await host.sync(caller=Caller(6, CLUSTER), revision=1)
    with pytest.raises(StaleControllerEpochError):
        await host.sync(caller=PERSON, revision=200)


async def test_another_node_name_changes_nothing_until_it_is_accepted(host: CacheHost) -> None:
    """F34: a host that was renamed or reinstalled."""
    host.write(VM)
    await host.sync(WEB)
    await host.restart(CacheSettings(node_name="node-2"))
    assert await host.state(VM) == "IN_USE"
    for call in (host.sync(), host.retain(WEB), host.purge(WEB), host.release(WEB), host.collect()):
        with pytest.raises(WrongNodeError):
            await call


async def test_an_owner_that_cannot_be_told_apart_is_no_full_set(host: CacheHost) -> None:
    with pytest.raises(InvalidFieldError, match=r"owners\[1\]\.pod_uid"):
        await host.sync(WEB, replace(WEB, namespace="other"))
    with pytest.raises(InvalidFieldError):
        await host.sync(Owner("", "ns", "web", VM))


async def test_without_the_marker_nothing_is_answered_from_memory_and_nothing_goes(host: CacheHost) -> None:
    """F5: an unmounted disk; all is as before when it is back."""
    host.write(VM)
    await host.sync()
    marker, hidden = host.root / MARKER_FILE, host.base / "hidden"
    marker.rename(hidden)
    for call in (host.cache.page(), host.cache.get(VM), host.cache.usage(), host.sync(), host.retain(WEB)):
        with pytest.raises(StoreUnavailableError):
            await call
    with pytest.raises(StoreUnavailableError):
        await host.purge_by_person(VM)
    results = await host.purge_results(WEB)
    assert [(one.outcome, one.deferred_reason) for one in results] == [(PurgeOutcome.DEFERRED, "STORE_UNAVAILABLE")]
    with pytest.raises(StoreUnavailableError):
        await host.collect(Policy(keep_at_most=0))
    await host.restart()
    with pytest.raises(StoreUnavailableError):
        await host.cache.page()
    hidden.rename(marker)
    assert await host.state(VM) == "UNCLAIMED"


async def test_a_damaged_ledger_leaves_everything_in_use_until_owners_are_synced(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    await host.cache.close()
    (host.state_dir / "ledger.sqlite").write_bytes(b"not a database" * 1000)
    await host.restart()
    assert await host.state(VM) == "IN_USE"
    assert await host.purge_by_person(VM, force=True) == {VM: PurgeOutcome.SKIPPED_IN_USE}
    _, summary = await host.collect(Policy(keep_at_most=0))
    assert summary.deferred_reason == "OWNER_SYNC_BEHIND"
    await host.restart()
    assert await host.state(VM) == "IN_USE"
    await host.sync()
    assert await host.state(VM) == "UNCLAIMED"
    assert (host.state_dir / "ledger.sqlite.damaged").exists()


async def test_a_damaged_ledger_is_no_first_start(host: CacheHost) -> None:
    """F5: the ledger is damaged and the disk is not there: no marker is written on whatever is there instead."""
    await host.cache.close()
    (host.state_dir / "ledger.sqlite").write_bytes(b"x" * 5000)
    (host.root / MARKER_FILE).unlink()
    await host.restart()
    with pytest.raises(StoreUnavailableError):
        await host.cache.page()
    assert not (host.root / MARKER_FILE).exists()


async def test_a_snapshot_that_was_away_comes_back_with_its_promises(host: CacheHost) -> None:
    host.write(VM, "id-a")
    await host.sync(WEB)
    await host.retain(WEB)
    await host.sync()
    (host.root / VM).rename(host.base / "away")
    with pytest.raises(SnapshotNotFoundError):
        await host.get(VM)
    await host.restart()
    (host.base / "away").rename(host.root / VM)
    assert await host.state(VM) == "RETAINED"
    host.write(VM, "id-b")
    assert await host.state(VM) == "UNCLAIMED"


async def test_damaged_metadata_are_shown_and_never_retained(host: CacheHost) -> None:
    """F25."""
    write_snapshot(host.root, VM, metadata=b"{")
    await host.sync(WEB)
    await host.sync()
    record = await host.get(VM)
    assert record.state.name == "INVALID"
    assert record.entry.problems
    with pytest.raises(SnapshotInvalidError):
        await host.retain(WEB)
    with pytest.raises(SnapshotInvalidError):
        await host.cache.verify(VM, "")


async def test_verify_compares_the_id_and_counts_as_a_use(host: CacheHost) -> None:
    host.write(VM, "id-a")
    await host.cache.look()
    host.clock.wall_now += 10 * 365 * DAY
    assert (await host.cache.verify(VM, "id-a")).last_use_at == host.clock.wall_now
    assert (await host.cache.verify(VM, "")).name == VM
    with pytest.raises(SnapshotIdMismatchError):
        await host.cache.verify(VM, "id-b")
    with pytest.raises(SnapshotNotFoundError):
        await host.cache.verify("vk-ns-none", "")


async def test_a_retention_with_an_end_becomes_unclaimed(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    await host.retain(WEB, ttl_seconds=HOUR, reason=RetainReason.DISRUPTION)
    host.clock.pass_time(HOUR - 1)
    await host.cache.settle()
    assert await host.state(VM) == "RETAINED"
    host.clock.pass_time(1)
    await host.cache.settle()
    record = await host.get(VM)
    assert (record.state.name, record.facts.unclaimed_at) == ("UNCLAIMED", host.clock.wall_now)


@pytest.mark.parametrize("step", [365 * DAY, -HOUR])
async def test_a_set_clock_expires_nothing_until_a_sync_confirms_it(host: CacheHost, step: float) -> None:
    """F30, also over a restart in between."""
    host.write(VM)
    await host.sync()
    await host.retain(WEB, ttl_seconds=HOUR)
    host.clock.step(step)
    await host.cache.settle()
    await host.restart()
    assert (await host.cache.usage()).clock_in_doubt
    assert await host.state(VM) == "RETAINED"
    host.clock.step(-step)
    await host.cache.settle()
    assert await host.state(VM) == "RETAINED"
    await host.sync()
    assert not (await host.cache.usage()).clock_in_doubt


async def collectable(host: CacheHost, count: int = 5) -> list[str]:
    """Write snapshots that nobody claims and let their grace period pass."""
    names = [f"vk-ns-p{number}" for number in range(count)]
    for name in names:
        host.write(name)
    await host.sync()
    host.clock.pass_time(25 * HOUR)
    await host.sync()
    return names


async def test_a_collection_does_what_its_dry_run_said(host: CacheHost) -> None:
    names = await collectable(host)
    planned, would = await host.collect(Policy(keep_at_most=2), dry_run=True)
    assert all(host.on_disk(name) for name in names)
    done, did = await host.collect(Policy(keep_at_most=2))
    assert [replace(item, outcome=CollectionOutcome.REMOVED) for item in planned] == done
    assert len(done) == 3
    assert (would.removed_count, would.removed_bytes) == (did.removed_count, did.removed_bytes)
    assert [name for name in names if host.on_disk(name)] == sorted(set(names) - {item.name for item in done})


async def test_nothing_is_collected_within_the_grace_period_of_this_ledger(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    host.clock.pass_time(23 * HOUR)
    await host.sync()
    assert await host.collect(Policy(keep_at_most=0)) == ([], (await host.collect(Policy(keep_at_most=0)))[1])
    assert host.on_disk(VM)


@pytest.mark.parametrize(
    ("settings", "policy", "reason"),
    [
        (CacheSettings("node-1"), Policy(), "NO_POLICY"),
        (CacheSettings("node-1", collection=CollectionMode.OFF), Policy(keep_at_most=0), "COLLECTION_OFF"),
    ],
)
async def test_a_collection_without_cause_does_nothing_and_says_so(
    host: CacheHost, settings: CacheSettings, policy: Policy, reason: str
) -> None:
    """F36."""
    names = await collectable(host)
    await host.restart(settings)
    await host.sync()
    items, summary = await host.collect(policy)
    assert (items, summary.deferred_reason) == ([], reason)
    assert all(host.on_disk(name) for name in names)


async def test_report_mode_tells_and_removes_nothing(host: CacheHost) -> None:
    names = await collectable(host)
    await host.restart(CacheSettings("node-1", collection=CollectionMode.REPORT))
    await host.sync()
    items, summary = await host.collect(Policy(keep_at_most=0))
    assert {item.outcome for item in items} == {CollectionOutcome.WOULD_REMOVE}
    assert summary.dry_run
    assert all(host.on_disk(name) for name in names)


@pytest.mark.parametrize("standalone", [True, False])
async def test_without_a_sync_only_a_standalone_host_collects(host: CacheHost, standalone: bool) -> None:
    host.write(VM)
    await host.cache.look()
    host.clock.pass_time(23 * HOUR)
    await host.restart(CacheSettings("node-1", standalone=standalone))
    host.clock.pass_time(2 * HOUR)
    items, summary = await host.collect(Policy(keep_at_most=0))
    assert [item.name for item in items] == ([VM] if standalone else [])
    assert summary.deferred_reason == ("" if standalone else "OWNER_SYNC_BEHIND")


async def test_what_changes_during_a_collection_is_left_alone(host: CacheHost) -> None:
    names = await collectable(host, 4)
    steps = host.cache.collect(PERSON, policy=Policy(keep_at_most=0))
    first = await anext(steps)
    left = [name for name in names if host.on_disk(name)]
    claimed, replaced, kept = left
    await host.sync(pod("ns", claimed.removeprefix("vk-ns-")))
    await host.retain(pod("ns", kept.removeprefix("vk-ns-")))
    host.write(replaced)
    rest = [step async for step in steps]
    assert getattr(first, "outcome", None) is CollectionOutcome.REMOVED
    assert [getattr(step, "outcome", None) for step in rest[:-1]] == [CollectionOutcome.SKIPPED] * 3
    assert all(host.on_disk(name) for name in left)


async def test_one_collection_runs_and_four_wait(host: CacheHost) -> None:
    """F21."""
    await collectable(host, 2)
    running = host.cache.collect(PERSON, policy=Policy(keep_at_most=0))
    await anext(running)
    waiting = [asyncio.create_task(host.collect(Policy(keep_at_most=0))) for _ in range(4)]
    await asyncio.sleep(0)
    await host.cache.page()
    refused = 0
    for _ in range(95):
        with pytest.raises(TooManyRequestsError):
            await host.collect(Policy(keep_at_most=0))
        refused += 1
    await running.aclose()
    assert [summary.deferred_reason for _, summary in await asyncio.gather(*waiting)] == [""] * 4
    assert refused == 95


async def test_a_caller_that_stops_waiting_leaves_nothing_half_done(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    purge = asyncio.create_task(host.purge(WEB))
    await asyncio.sleep(0)
    purge.cancel()
    with pytest.raises(asyncio.CancelledError):
        await purge
    await host.cache.core.turns.settle_running()
    page = await host.cache.page()
    assert [record.state.name for record in page.snapshots] == (["UNCLAIMED"] if host.on_disk(VM) else [])
