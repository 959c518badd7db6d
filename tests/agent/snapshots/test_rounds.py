"""Keeping and purging again and again leaves nothing behind: files, bytes and memory stay what they were."""

import gc
from dataclasses import replace

import psutil
import pytest

from common.snapshot_words import PurgeOutcome
from tests.agent.snapshots.caching import CacheHost, pod
from tests.support.waiting import wait_for_async

WEB = pod("ns", "web")
VM = WEB.vm_name
LIMIT_BYTES = 8 << 20
WARM_UP = 50


@pytest.mark.timeout(3600)
async def test_records_do_not_grow_with_use(host: CacheHost, long_profile: bool) -> None:
    """Rule 10: each round another pod of the name, kept, released and purged; every third by force."""
    rounds = 10_000 if long_profile else 300
    process = psutil.Process()
    files_after_one: set[str] = set()
    memory_before = 0
    for number in range(rounds):
        host.write(VM)
        owner = replace(WEB, pod_uid=f"uid-{number}")
        await host.sync(owner)
        await host.retain(owner)
        await host.sync()
        if number % 3:
            await host.release(owner)
            assert await host.purge(owner) == {VM: PurgeOutcome.PURGED}
        else:
            assert (await host.purge_by_person(VM, force=True))[VM] is PurgeOutcome.PURGED
        if number == 0:
            files_after_one = {path.name for path in host.state_dir.iterdir()}
        if number == WARM_UP:
            gc.collect()
            memory_before = process.memory_info().rss
    await host.cache.maintain_ledger()
    await wait_for_async(lambda: host.cache.core.store.trash_bytes() == 0, what="an empty trash")
    gc.collect()
    grown = process.memory_info().rss - memory_before
    ledger_bytes = host.cache.core.journal.ledger.size_bytes()
    files = {path.name for path in host.state_dir.iterdir()}
    in_store = {path.name for path in host.root.iterdir()}
    print(f"{rounds} rounds: {len(files)} files, {ledger_bytes} bytes of ledger, memory grown by {grown} bytes")
    assert files == files_after_one
    assert in_store == {".cocoon-node-store", ".cocoon-node-trash"}
    assert ledger_bytes <= LIMIT_BYTES
    assert grown <= LIMIT_BYTES
    assert len(host.cache.core.inventory) == 0
