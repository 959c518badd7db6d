"""What is answered while the cache opens, and after it could not be opened whole."""

import asyncio
import threading
from pathlib import Path

import pytest

from agent.snapshots import cache_refresh
from agent.snapshots.collection import Policy
from agent.snapshots.errors import StoreFault, StoreUnavailableError
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.stores.contract import Inventory
from tests.agent.snapshots.caching import DAY, CacheHost, pod

WEB = pod("ns", "web")
VM = WEB.vm_name


async def test_before_the_first_look_has_ended_nothing_is_called_absent(tmp_path: Path) -> None:
    """Rule 4: a list that is not complete yet is no list; who asks while the agent starts is told so."""
    looking, may_look = threading.Event(), threading.Event()
    host = CacheHost(tmp_path)
    host.write(VM)
    store = host.cache.core.store
    scan_all = store.scan_all

    def slow_scan() -> Inventory:
        looking.set()
        assert may_look.wait(30)
        return scan_all()

    store.scan_all = slow_scan  # type: ignore[method-assign]
    opening = asyncio.create_task(host.open())
    await asyncio.to_thread(looking.wait, 30)
    for question in (host.cache.page(), host.cache.get(VM), host.cache.usage(), host.sync(), host.retain(WEB)):
        with pytest.raises(StoreUnavailableError, match="starting"):
            await question
    may_look.set()
    await opening
    assert [record.name for record in (await host.cache.page()).snapshots] == [VM]
    await host.cache.close()


async def test_names_read_one_by_one_are_no_whole_picture(host: CacheHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 4: a store that cannot be listed stays unavailable, also when single snapshots can be read."""
    host.write(VM)
    await host.cache.close()
    host.cache = host._new()
    unreadable = StoreUnavailableError("input/output error", fault=StoreFault.INPUT_OUTPUT_ERROR)

    def fail() -> Inventory:
        raise unreadable

    monkeypatch.setattr(host.cache.core.store, "scan_all", fail)
    await host.open()
    await host.purge(WEB)
    with pytest.raises(StoreUnavailableError):
        await host.cache.page()
    monkeypatch.undo()
    assert [record.name for record in (await host.cache.page()).snapshots] == [VM]


async def test_a_first_look_writes_down_what_it_finds_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be written takes no more room with more snapshots, and all of it is written in the end."""
    monkeypatch.setattr(cache_refresh, "_RECORDED_CHUNK", 5)
    host = CacheHost(tmp_path)
    for number in range(12):
        host.write(f"vk-ns-p{number}")
    ledger = host.cache.core.journal.ledger
    written: list[int] = []
    commit = ledger.commit

    def count(change: LedgerChange, *, urgent: bool = False) -> None:
        written.append(len(change.facts))
        commit(change, urgent=urgent)

    monkeypatch.setattr(ledger, "commit", count)
    await host.open()
    assert [count for count in written if count] == [5, 5, 2]
    await host.crash()
    host.clock.pass_time(DAY)
    await host.sync()
    items, _ = await host.collect(Policy(keep_at_most=0))
    assert len(items) == 12
    await host.cache.close()
