"""What the cache does by itself: each thing at its own pace, and none of them stopped by a fault of another."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from agent.snapshots.cache_settings import CacheSettings
from agent.snapshots.collection import Policy, Watermarks
from agent.snapshots.errors import LedgerUnavailableError, StoreFault, StoreUnavailableError
from agent.snapshots.upkeep import Upkeep
from tests.agent.snapshots.caching import DAY, HOUR, CacheHost, pod
from tests.support.waiting import wait_for_async

VM = pod("ns", "web").vm_name
NEVER, OFTEN = 24 * HOUR, 0.01
RESTING = CacheSettings(
    node_name="node-1",
    policy=Policy(keep_at_most=0),
    refresh_seconds=NEVER,
    full_scan_seconds=NEVER,
    watermark_seconds=NEVER,
    policy_seconds=NEVER,
)


@asynccontextmanager
async def upkeep(host: CacheHost, **paces: float) -> AsyncIterator[Upkeep]:
    """Restart the host's cache and have only these loops of its upkeep turn."""
    await host.restart(replace(RESTING, **paces))  # type: ignore[arg-type] # the fields of CacheSettings
    await host.sync()
    running = Upkeep(host.cache)
    running.start()
    try:
        yield running
    finally:
        await running.stop()


async def collectable(host: CacheHost) -> None:
    """Write a snapshot that nobody claims and let its grace period pass."""
    host.write(VM)
    await host.sync()
    host.clock.pass_time(25 * HOUR)
    await host.sync()


def counted(monkeypatch: pytest.MonkeyPatch, host: CacheHost, method: str) -> Callable[[], int]:
    """Return a function that tells how often a method of the cache has come to its end since."""
    original, ended = getattr(host.cache, method), 0

    async def counting(*args: object, **kwargs: object) -> object:
        nonlocal ended
        result = await original(*args, **kwargs)
        ended += 1
        return result

    monkeypatch.setattr(host.cache, method, counting)
    return lambda: ended


def test_the_paces_and_bounds_are_those_of_the_contract() -> None:
    """The file system every 10 s, policies every 10 minutes; nothing is collected by age or size unless set."""
    settings = CacheSettings(node_name="node-1")
    assert (settings.watermark_seconds, settings.policy_seconds) == (10, 600)
    assert (settings.sync_max_age_seconds, settings.grace_seconds) == (15 * 60, DAY)
    assert settings.watermarks == Watermarks(high_percent=85, low_percent=80, reclaimable=False)
    assert not settings.policy


async def test_a_policy_is_applied_without_anybody_asking(host: CacheHost) -> None:
    await collectable(host)
    async with upkeep(host, policy_seconds=OFTEN):
        await wait_for_async(lambda: not host.on_disk(VM), what="the collection")


async def test_a_look_at_the_watermark_applies_no_policy(host: CacheHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a policy evicts goes at the policy's pace."""
    await collectable(host)
    async with upkeep(host, watermark_seconds=OFTEN) as running:
        looks = counted(monkeypatch, host, "maintain_ledger")
        await wait_for_async(lambda: looks() >= 3, what="looks at the file system")
        assert host.on_disk(VM)
        await running.apply_policy()
        assert not host.on_disk(VM)


async def test_a_new_snapshot_is_noticed_without_anybody_asking(host: CacheHost) -> None:
    async with upkeep(host, refresh_seconds=OFTEN):
        host.write(VM)
        await wait_for_async(lambda: host.cache.core.inventory.get(VM) is not None, what="the new snapshot")


async def test_a_change_inside_a_file_is_noticed_by_the_slow_look(host: CacheHost) -> None:
    """A directory's time does not tell of it, once that is old enough to be believed."""
    host.write(VM)
    async with upkeep(host, full_scan_seconds=OFTEN):
        core = host.cache.core

        def is_at_rest() -> bool:
            return core.mark is not None and not core.store.changed_since(core.mark).changed

        await wait_for_async(is_at_rest, what="a mark that tells of no change")
        before = (await host.cache.get(VM)).entry.apparent_bytes
        data = next(path for path in (host.root / VM).iterdir() if path.name != "snapshot.json")
        with data.open("ab") as file:
            file.write(b"more")

        async def has_grown() -> bool:
            return (await host.cache.get(VM)).entry.apparent_bytes == before + 4

        await wait_for_async(has_grown, what="the new size")


@pytest.mark.parametrize(
    "fault",
    [
        StoreUnavailableError("the disk is away", fault=StoreFault.MISSING),
        LedgerUnavailableError("the ledger's disk is away"),
        RuntimeError("a mistake"),
    ],
    ids=["store", "ledger", "mistake"],
)
async def test_a_look_that_fails_ends_no_loop(
    host: CacheHost, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Neither its own nor another's: an agent that had stopped looking would let the disk fill up unseen."""
    await collectable(host)
    failures = 0

    async def failing(**_: object) -> None:
        nonlocal failures
        failures += 1
        raise fault

    async with upkeep(host, refresh_seconds=OFTEN):
        with monkeypatch.context() as patched:
            patched.setattr(host.cache, "look", failing)
            await wait_for_async(lambda: failures >= 3, what="looks that fail")
        host.write("vk-ns-later")
        await wait_for_async(lambda: host.cache.core.inventory.get("vk-ns-later") is not None, what="a look again")
