"""What happens beside a collection, and the numbers told about it, on a real store."""

import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.snapshots.authority import PERSON
from agent.snapshots.cache_collect import CollectedItem, CollectionOutcome, CollectionSummary
from agent.snapshots.cache_settings import CacheSettings, CollectionMode
from agent.snapshots.collection import Policy
from agent.snapshots.upkeep import Upkeep
from agent.snapshots.view import CacheView
from common.snapshot_words import Owner, PurgeOutcome, RetainReason
from tests.agent.snapshots.caching import HOUR, CacheHost, pod
from tests.agent.snapshots.stores.harness import envelope, write_snapshot

PODS = (pod("ns", "p0"), pod("ns", "p1"))
NAMES = tuple(owner.vm_name for owner in PODS)
EVERYTHING = Policy(keep_at_most=0)


async def collectable(host: CacheHost) -> None:
    """Write two snapshots that nobody claims and let their grace period pass."""
    for name in NAMES:
        host.write(name)
    await host.sync()
    host.clock.pass_time(25 * HOUR)
    await host.sync()


async def verify(host: CacheHost, name: str) -> None:
    await host.cache.verify(name, "")


async def read_a_file(host: CacheHost, name: str) -> None:
    path = next(path for path in (host.root / name).iterdir() if path.name != "snapshot.json")
    path.touch()
    await host.cache.look(everything=True)


async def remove(host: CacheHost, name: str) -> None:
    shutil.rmtree(host.root / name)


@pytest.mark.parametrize("use", [verify, read_a_file])
async def test_what_is_used_during_a_collection_is_left_alone(
    host: CacheHost, use: Callable[[CacheHost, str], Awaitable[None]]
) -> None:
    """Whoever verifies a copy restores it next; taking it away now would break the wake."""
    await collectable(host)
    steps = host.cache.collect(PERSON, policy=EVERYTHING)
    await anext(steps)
    (left,) = (name for name in NAMES if host.on_disk(name))
    await use(host, left)
    rest = [step async for step in steps]
    assert [step.outcome for step in rest if isinstance(step, CollectedItem)] == [CollectionOutcome.SKIPPED]
    assert host.on_disk(left)


async def test_what_was_just_verified_is_in_no_plan(host: CacheHost) -> None:
    await collectable(host)
    await host.cache.verify(NAMES[0], "")
    assert [item.name for item in (await host.collect(EVERYTHING))[0]] == [NAMES[1]]
    host.clock.pass_time(121)
    await host.sync()
    assert [item.name for item in (await host.collect(EVERYTHING))[0]] == [NAMES[0]]


async def test_what_others_removed_is_not_counted_as_ours(host: CacheHost) -> None:
    await collectable(host)
    steps = host.cache.collect(PERSON, policy=EVERYTHING)
    await anext(steps)
    (left,) = (name for name in NAMES if host.on_disk(name))
    await remove(host, left)
    summary = [step async for step in steps][-1]
    assert isinstance(summary, CollectionSummary)
    assert (summary.removed_count, summary.skipped_count) == (1, 1)
    assert sum(host.cache.core.counters.collected.values()) == 1


async def test_a_purge_counts_only_what_it_removed(host: CacheHost) -> None:
    host.write(NAMES[0])
    await host.sync()
    await remove(host, NAMES[0])
    assert await host.purge(PODS[0]) == {NAMES[0]: PurgeOutcome.NOTHING_TO_PURGE}
    assert (host.cache.core.counters.purged, host.cache.core.counters.purged_bytes) == (0, 0)
    host.write(NAMES[1])
    await host.sync()
    (result,) = await host.purge_results(PODS[1])
    assert (host.cache.core.counters.purged, host.cache.core.counters.purged_bytes) == (1, result.bytes)


@pytest.mark.parametrize(
    ("owner", "backed_up", "reason", "mode"),
    [
        (PODS[0], True, RetainReason.SEAT_RELEASE, CollectionMode.ON),
        (PODS[0], False, RetainReason.SEAT_RELEASE, CollectionMode.ON),
        (PODS[0], True, RetainReason.DISRUPTION, CollectionMode.ON),
        (replace(PODS[0], managed=False), True, RetainReason.SEAT_RELEASE, CollectionMode.ON),
        (pod("evil", "p", vm_name=NAMES[0]), True, RetainReason.SEAT_RELEASE, CollectionMode.ON),
        (PODS[0], True, RetainReason.SEAT_RELEASE, CollectionMode.OFF),
        (PODS[0], True, RetainReason.SEAT_RELEASE, CollectionMode.REPORT),
    ],
    ids=["kept", "no backup", "after a disruption", "unmanaged", "foreign name", "off", "report only"],
)
async def test_no_more_is_sold_than_a_collection_takes(
    host: CacheHost, owner: Owner, backed_up: bool, reason: RetainReason, mode: CollectionMode
) -> None:
    """Bytes counted as reclaimable come back when they are needed, or they were sold for nothing."""
    host.write(owner.vm_name)
    await host.restart(CacheSettings("node-1", collection=mode))
    await host.sync(owner)
    await host.sync()
    await host.retain(owner, reason=reason, backup_verified=backed_up)
    sold = CacheView(host.cache, Upkeep(host.cache)).reclaimable_bytes()
    items, _ = await host.collect(EVERYTHING)
    taken = sum(item.bytes for item in items if item.outcome is CollectionOutcome.REMOVED)
    ranked = backed_up and reason is not RetainReason.DISRUPTION
    assert sold == (taken if ranked else 0)
    assert (sold > 0) is (owner == PODS[0] and ranked and mode is CollectionMode.ON)


def half_written(host: CacheHost, owner: Owner) -> Path:
    """Put a snapshot in place whose last file is still being written there; return that file."""
    recorded = {"memory-ranges": 100_000}
    write_snapshot(host.root, owner.vm_name, metadata=envelope(owner.vm_name, "id-1", files=recorded))
    return host.root / owner.vm_name / "memory-ranges"


async def test_what_was_completed_in_place_is_kept_by_the_flag(host: CacheHost) -> None:
    """F25: a verdict of damage is looked at again before a promise is withheld because of it."""
    data = half_written(host, PODS[0])
    await host.sync(replace(PODS[0], keep_on_delete=True))
    assert (await host.get(NAMES[0])).invalid
    os.truncate(data, 100_000)
    await host.sync()
    assert await host.state(NAMES[0]) == "RETAINED"


async def test_what_was_completed_in_place_is_not_collected_as_damaged(host: CacheHost) -> None:
    """F25: it is again what somebody was promised, though the plan saw it damaged."""
    data = half_written(host, PODS[0])
    os.truncate(data, 100_000)
    host.write(NAMES[1])
    await host.sync(replace(PODS[0], keep_on_delete=True))
    await host.sync()
    os.truncate(data, 10)
    await host.cache.look(everything=True)
    assert await host.state(NAMES[0]) == "INVALID"
    host.clock.pass_time(25 * HOUR)
    await host.sync()
    steps = host.cache.collect(PERSON, policy=EVERYTHING)
    first = await anext(steps)
    assert isinstance(first, CollectedItem)
    assert first.name == NAMES[1]
    os.truncate(data, 100_000)
    done = [step.outcome for step in [step async for step in steps] if isinstance(step, CollectedItem)]
    assert done == [CollectionOutcome.SKIPPED]
    assert await host.state(NAMES[0]) == "RETAINED"
