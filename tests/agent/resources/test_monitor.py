"""When the host is read, what a failed reading does, and what is published."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from agent.config import Settings
from agent.resources import monitor as monitor_module
from agent.resources.capacity import quantity_text
from agent.resources.facts import read_facts
from agent.resources.monitor import HostMonitor, ProbesFailedError
from agent.resources.overlays import KnownVm
from agent.resources.report import MEMORY_OVERCOMMITTED, PROBE_FAILED, Condition, HostReport
from agent.resources.snapshot_view import SnapshotView
from tests.support.waiting import wait_for_async

FIXTURES = Path(__file__).parents[1] / "fixtures"
Space = Callable[..., None]


class Sink:
    """Keeps every report."""

    def __init__(self) -> None:
        self.reports: list[HostReport] = []

    def publish(self, report: HostReport) -> None:
        self.reports.append(report)

    def capacity(self) -> dict[str, str]:
        return {each.name: quantity_text(each.name, each.capacity) for each in self.reports[-1].amounts}

    def allocatable(self) -> dict[str, str]:
        return {each.name: quantity_text(each.name, each.allocatable) for each in self.reports[-1].amounts}

    def condition(self, kind: str) -> Condition:
        return next(each for each in self.reports[-1].conditions if each.type == kind)


class Cache:
    """A snapshot cache's view that a test turns; nothing is in it at first."""

    def __init__(self) -> None:
        self.vms: tuple[KnownVm, ...] = ()
        self.reclaimable = 0
        self.problem: str | None = None
        self.told: tuple[Condition, ...] = ()

    def known_vms(self) -> Iterable[KnownVm]:
        return self.vms

    def reclaimable_bytes(self) -> int:
        return self.reclaimable

    def storage_problem(self) -> str | None:
        return self.problem

    def conditions(self) -> Iterable[Condition]:
        return self.told


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    """A function that sets what the file system reports; the host's own is used before the first call."""

    def set_space(blocks: int, available: int, fragment: int = 4096) -> None:
        answer = os.statvfs_result((fragment, fragment, blocks, available, available, 1, 1, 1, 0, 255))
        monkeypatch.setattr(os, "statvfs", lambda _path: answer)

    return set_space


def monitor_of(
    settings: Settings, sink: Sink, view: SnapshotView | None = None, clock: Clock | None = None
) -> HostMonitor:
    facts = read_facts(settings.procfs, settings.sysfs, settings.etcfs)
    return HostMonitor(settings, facts, settings.node_ip or "", sink, view or Cache(), clock or Clock())


async def test_the_first_report_is_the_worked_example(host_settings: Callable[..., Settings], space: Space) -> None:
    space(1_000_000, 400_000)
    sink = Sink()
    await monitor_of(host_settings(), sink).first_report()
    assert sink.capacity() == {
        "cpu": "32",
        "memory": "131927504Ki",
        "ephemeral-storage": "4000000Ki",
        "pods": "256",
    }
    assert sink.allocatable() == {
        "cpu": "25",
        "memory": "108075011276",
        "ephemeral-storage": "1250Mi",
        "pods": "256",
    }
    assert dict(sink.reports[-1].labels) == {
        "cocoonstack.io/pool": "default",
        "node-role.kubernetes.io/cocoon-vm": "",
        "kubernetes.io/hostname": "host-1",
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }


@pytest.mark.parametrize(
    ("host", "variables", "expected"),
    [
        ("default-1gi-pages", {}, {"hugepages-1Gi": ("4Gi", "3435973836")}),
        ("default-1gi-pages", {"VK_NODE_HUGEPAGES": "8Gi"}, {"hugepages-2Mi": ("8Gi", "6871947673")}),
        ("default-1gi-pages", {"VK_NODE_HUGEPAGES": "0"}, {}),
        ("numa-hugepages", {}, {"hugepages-1Gi": ("4Gi", "3435973836")}),
        ("no-hugepages", {}, {}),
        (
            "thirty-two-cpus",
            {"VK_NODE_CPU": "3100m", "VK_NODE_MEM": "1.5Gi", "VK_NODE_STORAGE": "1Ti", "VK_NODE_PODS": "1k"},
            {
                "cpu": ("3100m", "2"),
                "memory": ("1536Mi", "1288490188"),
                "ephemeral-storage": ("1Ti", "879609302220"),
                "pods": ("1k", "1k"),
            },
        ),
    ],
)
async def test_overrides_and_hugepages(
    host_settings: Callable[..., Settings], host: str, variables: dict[str, str], expected: dict[str, tuple[str, str]]
) -> None:
    """F3, F7: only sizes with pages; an override replaces what was probed, in canonical form."""
    sink = Sink()
    await monitor_of(host_settings(host, **variables), sink).first_report()
    published = {name: (sink.capacity()[name], sink.allocatable()[name]) for name in sink.capacity()}
    assert {name: published[name] for name in expected} == expected
    assert {name for name in published if name.startswith("hugepages")} == {
        name for name in expected if name.startswith("hugepages")
    }


async def test_everything_overridden_reads_nothing(host_settings: Callable[..., Settings], tmp_path: Path) -> None:
    overrides = {"VK_NODE_CPU": "4", "VK_NODE_MEM": "8Gi", "VK_NODE_STORAGE": "1Gi", "VK_NODE_HUGEPAGES": "1Gi"}
    sink = Sink()
    await monitor_of(host_settings(tmp_path / "no-such-host", **overrides), sink).first_report()
    assert {raw.raw.origin for raw in sink.reports[-1].amounts} == {*overrides, "VK_NODE_PODS"}


async def test_overlays_are_added_back_after_a_sync(
    host_settings: Callable[..., Settings], space: Space, tmp_path: Path
) -> None:
    space(1_000_000, 400_000)
    overlay = tmp_path / "run/firecracker/vm-1/overlay.qcow2"
    overlay.parent.mkdir(parents=True)
    overlay.write_bytes(b"x" * 1_048_576)
    with overlay.open("rb") as file:
        os.fsync(file.fileno())
    cache, sink = Cache(), Sink()
    monitor = monitor_of(host_settings(), sink, cache)
    await monitor.first_report()
    running = asyncio.create_task(monitor.run())
    try:
        cache.vms = (KnownVm("vm-1", 50_000_000),)
        monitor.refresh_soon()
        added = str((400_000 * 4096 + overlay.stat().st_blocks * 512) * 80 // 100)
        await wait_for_async(lambda: sink.reports[-1].amounts[1].allocatable == int(added))
        assert [step.reason for step in sink.reports[-1].amounts[1].adjustments] == [
            "UNAVAILABLE_SPACE",
            "OVERLAYS_ADDED_BACK",
            "RESERVE",
        ]
    finally:
        await cancelled(running)


@pytest.mark.parametrize(("setting", "reclaimable_blocks"), [("false", 0), ("true", 1000)])
async def test_retained_snapshots_count_as_free_only_when_asked_for(
    host_settings: Callable[..., Settings], space: Space, setting: str, reclaimable_blocks: int
) -> None:
    space(1_000_000, 400_000)
    cache, sink = Cache(), Sink()
    cache.reclaimable = 1000 * 4096
    await monitor_of(host_settings(COCOON_NODE_RETAINED_IS_RECLAIMABLE=setting), sink, cache).first_report()
    storage = next(each for each in sink.reports[-1].amounts if each.name == "ephemeral-storage")
    assert storage.allocatable == (400_000 + reclaimable_blocks) * 4096 * 80 // 100


async def test_no_blocks_at_start_is_retried_and_nothing_published(
    host_settings: Callable[..., Settings], space: Space
) -> None:
    """F6: a file system without blocks is waited for."""
    space(0, 0)
    sink = Sink()
    starting = asyncio.create_task(monitor_of(host_settings(COCOON_NODE_START_RETRY_SECONDS="30"), sink).first_report())
    await asyncio.sleep(0)
    assert sink.reports == []
    space(1_000_000, 400_000)
    await starting
    assert sink.allocatable()["ephemeral-storage"] == "1250Mi"


async def test_a_start_that_never_succeeds_is_an_error(host_settings: Callable[..., Settings], space: Space) -> None:
    """F6: it ends with the resource, the call and the problem."""
    space(0, 0)
    sink = Sink()
    with pytest.raises(ProbesFailedError, match=r"ephemeral-storage cannot be read from statvfs .* no blocks"):
        await monitor_of(host_settings(), sink).first_report()
    assert sink.reports == []


async def test_the_last_good_storage_is_kept(host_settings: Callable[..., Settings], space: Space) -> None:
    """F6: later the last good value stays, the condition is on, and goes when the reading succeeds again."""
    space(1_000_000, 400_000)
    sink, clock = Sink(), Clock()
    monitor = monitor_of(host_settings(), sink, clock=clock)
    await monitor.first_report()
    assert sink.condition(PROBE_FAILED).status is False
    running = asyncio.create_task(monitor.run())
    try:
        space(0, 0)
        monitor.refresh_soon()
        await wait_for_async(lambda: sink.condition(PROBE_FAILED).status)
        assert sink.allocatable()["ephemeral-storage"] == "1250Mi"
        assert "no blocks" in sink.condition(PROBE_FAILED).message
        since = sink.condition(PROBE_FAILED).changed_at
        monitor.refresh_soon()
        count = len(sink.reports)
        await wait_for_async(lambda: len(sink.reports) > count)
        assert sink.condition(PROBE_FAILED).changed_at == since
        space(1_000_000, 300_000)
        monitor.refresh_soon()
        await wait_for_async(lambda: sink.condition(PROBE_FAILED).status is False)
        assert sink.allocatable()["ephemeral-storage"] == "960000Ki"
    finally:
        await cancelled(running)


async def test_a_file_system_that_hangs_is_told_and_waited_for(
    host_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F6: no answer is no news: the value stays, the condition is on, and nothing else waits for it."""
    monkeypatch.setattr(monitor_module, "_PATIENCE_SECONDS", 0.05)
    sink, gate, hangs = Sink(), threading.Event(), 0
    monitor = monitor_of(host_settings(), sink)
    await monitor.first_report()
    before, answer = sink.capacity(), os.statvfs("/")

    def hang(_path: str) -> os.statvfs_result:
        nonlocal hangs
        hangs += 1
        gate.wait(30)
        return answer

    monkeypatch.setattr(os, "statvfs", hang)
    running = asyncio.create_task(monitor.run())
    try:
        for _ in range(3):
            seen = len(sink.reports)
            monitor.refresh_soon()
            await wait_for_async(lambda seen=seen: len(sink.reports) > seen)  # type: ignore[misc]  # a bound default
            assert sink.condition(PROBE_FAILED).status
            assert "has not answered" in sink.condition(PROBE_FAILED).message
            assert sink.capacity() == before
        assert hangs == 1
        gate.set()
        monitor.refresh_soon()
        await wait_for_async(lambda: not sink.condition(PROBE_FAILED).status)
    finally:
        gate.set()
        await cancelled(running)


async def test_a_root_directory_that_goes_keeps_the_value(
    host_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    """F5: gone while running is a condition, not the size of what is above it."""
    root = tmp_path / "root"
    root.mkdir()
    sink = Sink()
    monitor = monitor_of(host_settings(COCOON_ROOT_DIR=str(root)), sink)
    await monitor.first_report()
    before = sink.capacity()["ephemeral-storage"]
    running = asyncio.create_task(monitor.run())
    try:
        root.rmdir()
        monitor.refresh_soon()
        await wait_for_async(lambda: sink.condition(PROBE_FAILED).status)
        assert sink.capacity()["ephemeral-storage"] == before
    finally:
        await cancelled(running)


async def test_another_file_system_under_the_same_path_keeps_the_value(
    host_settings: Callable[..., Settings], small_file_system: Callable[..., Path], tmp_path: Path
) -> None:
    """F5: the mount is swapped while the agent runs; through a symbolic link, so that no unmount is needed."""
    first, second = small_file_system(size_bytes=4 << 20), small_file_system(size_bytes=8 << 20)
    root = tmp_path / "root"
    root.symlink_to(first, target_is_directory=True)
    sink = Sink()
    monitor = monitor_of(host_settings(COCOON_ROOT_DIR=str(root)), sink)
    await monitor.first_report()
    assert sink.capacity()["ephemeral-storage"] == "4Mi"
    running = asyncio.create_task(monitor.run())
    try:
        root.unlink()
        root.symlink_to(second, target_is_directory=True)
        monitor.refresh_soon()
        await wait_for_async(lambda: sink.condition(PROBE_FAILED).status)
        assert sink.capacity()["ephemeral-storage"] == "4Mi"
        assert "another file system" in sink.condition(PROBE_FAILED).message
    finally:
        await cancelled(running)


async def test_a_store_that_is_not_there_keeps_the_value(host_settings: Callable[..., Settings], space: Space) -> None:
    """F5: the snapshot store's marker is missing: the storage is not believed."""
    space(1_000_000, 400_000)
    cache, sink = Cache(), Sink()
    monitor = monitor_of(host_settings(), sink, cache)
    await monitor.first_report()
    running = asyncio.create_task(monitor.run())
    try:
        cache.problem = "the store's marker is missing"
        space(7, 7)
        monitor.refresh_soon()
        await wait_for_async(lambda: sink.condition(PROBE_FAILED).status)
        assert sink.capacity()["ephemeral-storage"] == "4000000Ki"
    finally:
        await cancelled(running)


async def test_refresh_sees_pages_come_and_go(host_settings: Callable[..., Settings], tmp_path: Path) -> None:
    """F4: with the refresh on, a grown and a shrunk pool are seen; a failed reading in between changes nothing."""
    host = tmp_path / "host"
    shutil.copytree(FIXTURES / "thirty-two-cpus", host)
    pages = host / "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages"
    sink = Sink()
    monitor = monitor_of(host_settings(host, COCOON_NODE_REFRESH_SECONDS="1"), sink)
    await monitor.first_report()
    assert "hugepages-1Gi" not in sink.capacity()
    running = asyncio.create_task(monitor.run())
    try:
        for text, expected in (("4\n", "4Gi"), ("2\n", "2Gi"), ("x\n", "2Gi"), ("0\n", None)):
            pages.write_text(text)
            seen = len(sink.reports)
            await wait_for_async(lambda seen=seen: len(sink.reports) > seen + 1)  # type: ignore[misc]  # a bound default
            assert sink.capacity().get("hugepages-1Gi") == expected
    finally:
        await cancelled(running)


async def test_a_condition_of_the_cache_is_reported(host_settings: Callable[..., Settings]) -> None:
    cache, sink = Cache(), Sink()
    cache.told = (Condition("DiskPressure", True, "AboveWatermark", "The disk is 90 % full."),)
    await monitor_of(host_settings(), sink, cache).first_report()
    assert sink.condition("DiskPressure").status is True
    kinds = [each.type for each in sink.reports[-1].conditions]
    assert kinds == sorted([MEMORY_OVERCOMMITTED, PROBE_FAILED, "DiskPressure"])


async def test_memory_sold_twice_is_told(host_settings: Callable[..., Settings]) -> None:
    sink = Sink()
    await monitor_of(host_settings("default-1gi-pages", VK_RESERVE_PERCENT="10"), sink).first_report()
    condition = sink.condition(MEMORY_OVERCOMMITTED)
    excess = 4 * 2**30 - (33554432 * 1024 - 33554432 * 1024 * 90 // 100)
    assert condition.status is True
    assert str(excess) in condition.message


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
