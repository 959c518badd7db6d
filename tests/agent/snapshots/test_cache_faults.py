"""Disks that are full or fail under the ledger and the store: reads go on, nothing is lost, space can be given back."""

import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from agent.snapshots.collection import Policy
from agent.snapshots.errors import LedgerUnavailableError
from common.snapshot_words import PurgeOutcome, RetainOutcome
from tests.agent.snapshots.caching import HOUR, CacheHost, opened, pod
from tests.agent.snapshots.test_ledger import fill
from tests.support.machine import can_mount, small_file_system

WEB = pod("ns", "web")
VM = WEB.vm_name


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """A function that mounts a file system of 4 MiB at a directory."""
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount file systems")
    with ExitStack() as stack:
        yield lambda place: stack.enter_context(small_file_system(place, size_bytes=4 << 20, kind="tmpfs"))


@pytest_asyncio.fixture
async def crowded(mount: Callable[[Path], Path], tmp_path: Path) -> AsyncIterator[CacheHost]:
    """A host whose store and ledger share a small disk, with snapshots that may be collected."""
    async with opened(CacheHost(mount(tmp_path / "disk"))) as host:
        for number in range(5):
            host.write(f"vk-ns-p{number}")
        await host.sync()
        host.clock.pass_time(25 * HOUR)
        await host.sync()
        yield host


async def test_with_no_byte_free_a_collection_still_works(crowded: CacheHost) -> None:
    """F24: the durable rename is record enough, and afterwards everything is as it should be."""
    fill(crowded.base)
    items, summary = await crowded.collect(Policy(keep_at_most=1))
    assert [(item.reason.name, item.outcome.name) for item in items] == [
        *[("KEEP_AT_MOST", "REMOVED")] * 4,
        ("WATERMARK", "REMOVED"),
    ]
    assert summary.removed_count == 5
    await crowded.crash()
    assert (await crowded.cache.page()).snapshots == ()


async def test_with_no_byte_free_a_purge_still_works(crowded: CacheHost) -> None:
    """F24."""
    fill(crowded.base)
    assert await crowded.purge(pod("ns", "p0")) == {"vk-ns-p0": PurgeOutcome.PURGED}


async def test_an_agent_starts_on_a_full_disk_and_can_make_room(crowded: CacheHost) -> None:
    """F24: also after the process was ended there."""
    fill(crowded.base)
    await crowded.crash()
    assert len((await crowded.cache.page()).snapshots) == 5
    assert (await crowded.purge_by_person("vk-ns-p0"))["vk-ns-p0"] is PurgeOutcome.PURGED


async def test_a_retention_that_cannot_be_written_is_refused_and_not_shown(crowded: CacheHost) -> None:
    """F24: what was not acknowledged was not promised; what was stays."""
    assert await crowded.retain(pod("ns", "p0")) is RetainOutcome.RETAINED
    fill(crowded.base)
    refused = None
    for number in range(2000):
        try:
            await crowded.retain(pod("ns", "p1", f"uid-{number % 10}"))
        except LedgerUnavailableError as error:
            refused = error
            break
    assert refused is not None
    (crowded.base / "filler").unlink()
    await crowded.crash()
    assert await crowded.state("vk-ns-p0") == "RETAINED"


@contextmanager
def failing_writes() -> Iterator[None]:
    """Let every write of this process to a file fail, as a broken disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_while_the_ledger_cannot_be_written_changes_are_refused_and_reads_go_on(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    with failing_writes():
        for call in (host.retain(WEB), host.sync(WEB), host.purge_by_person(VM)):
            with pytest.raises(LedgerUnavailableError) as refused:
                await call
            assert refused.value.metadata["cause"].startswith("SQLITE_IOERR")
        results = await host.purge_results(WEB, revision=1)
        assert [(one.outcome, one.deferred_reason) for one in results] == [(PurgeOutcome.DEFERRED, "STORE_UNAVAILABLE")]
        with pytest.raises(LedgerUnavailableError):
            await host.collect(Policy(keep_at_most=0))
        assert await host.state(VM) == "UNCLAIMED"
        assert (await host.cache.usage()).disk.total_bytes > 0
    assert host.on_disk(VM)
    assert await host.retain(WEB) is RetainOutcome.RETAINED
    await host.crash()
    assert await host.state(VM) == "RETAINED"
