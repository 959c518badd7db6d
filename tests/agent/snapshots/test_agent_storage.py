"""The kept cache as the scheduler sees it: a whole agent on a small file system, its report and its conditions."""

from __future__ import annotations

import contextlib
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.ask import ask_report
from cocoonstack.node.v1 import node_resources_pb2 as node_pb
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from common.quantity import parse_quantity
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots.stores.harness import envelope, tree, write_snapshot
from tests.support.machine import can_mount, small_file_system
from tests.support.waiting import wait_for

MIB = 1 << 20
SIZE_BYTES = 64 * MIB


class StorageHost:
    """An agent whose root is a file system of 64 MiB, read every second, without a controller and without a reserve."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self._channel: grpc.Channel | None = None
        self.calls: Any = None

    def start(self, **settings: str) -> None:
        self.agent.settings = {
            "COCOON_NODE_STANDALONE": "true",
            "COCOON_NODE_STORAGE_REFRESH_SECONDS": "1",
            "VK_RESERVE_PERCENT": "0",
            **settings,
        }
        self.agent.start()
        self._channel = grpc.insecure_channel(self.agent.address)
        self.calls = SnapshotCacheStub(self._channel)

    def stop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self.agent.release()

    def write(self, name: str, size_bytes: int) -> None:
        (self.agent.root / "snapshots").mkdir(exist_ok=True)
        files = {"memory-ranges": b"m" * size_bytes}
        write_snapshot(self.agent.root / "snapshots", name, files, metadata=envelope(name, f"id-{name}"))

    def retain(self, name: str, *, backup_verified: bool = False) -> None:
        request = pb.RetainSnapshotsRequest(owner=pb.Owner(vm_name=name), backup_verified=backup_verified)
        answer = self.calls.RetainSnapshots(request)
        assert answer.outcome == pb.RETAIN_OUTCOME_RETAINED

    def allocatable(self) -> int:
        return parse_quantity(ask_report(self.agent.address).allocatable["ephemeral-storage"]).bytes()

    def under_pressure(self) -> bool | None:
        for condition in ask_report(self.agent.address).conditions:
            if condition.type == "DiskPressure":
                return condition.status == node_pb.CONDITION_STATUS_TRUE
        return None

    def states(self) -> dict[str, str]:
        listed = self.calls.ListSnapshots(pb.ListSnapshotsRequest(), timeout=20).snapshots
        return {one.name: pb.SnapshotState.Name(one.state).removeprefix("SNAPSHOT_STATE_") for one in listed}

    def collect(self) -> tuple[list[tuple[str, str]], pb.CollectionSummary]:
        request = pb.CollectGarbageRequest(policy=pb.CollectionPolicy(keep_at_most=0))
        messages = list(self.calls.CollectGarbage(request, timeout=60))
        items = [message.item for message in messages if message.HasField("item")]
        outcomes = [pb.CollectionOutcome.Name(item.outcome).removeprefix("COLLECTION_OUTCOME_") for item in items]
        return [(item.name, outcome) for item, outcome in zip(items, outcomes, strict=True)], messages[-1].summary


def fill_up(path: Path) -> None:
    """Write a file until no byte is free."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"f" * 65536)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[StorageHost]:
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount file systems")
    with ExitStack() as stack:
        agent = AgentProcess(tmp_path / "agent", "node-1")
        stack.enter_context(small_file_system(agent.root, size_bytes=SIZE_BYTES, kind="tmpfs"))
        made = StorageHost(agent)
        stack.callback(made.stop)
        yield made


def test_what_is_kept_lowers_the_storage_and_collecting_gives_it_back(host: StorageHost) -> None:
    host.start()
    empty = host.allocatable()
    assert 63 * MIB <= empty <= SIZE_BYTES
    host.write("vk-ns-kept", 10 * MIB)
    host.write("vk-ns-unclaimed", 5 * MIB)
    wait_for(lambda: len(host.states()) == 2, what="both listed")
    host.retain("vk-ns-kept", backup_verified=True)
    wait_for(lambda: empty - 16 * MIB <= host.allocatable() <= empty - 15 * MIB, 10, what="less storage by 15 MiB")
    items, _ = host.collect()
    assert items == [("vk-ns-kept", "REMOVED")]
    wait_for(lambda: empty - 6 * MIB <= host.allocatable() <= empty - 5 * MIB, 10, what="10 MiB back")
    host.calls.PurgeSnapshots(pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name="vk-ns-unclaimed")))
    wait_for(lambda: host.allocatable() >= empty - MIB, 10, what="all of it back")


def test_what_has_a_backup_can_be_sold_and_goes_above_the_low_watermark(host: StorageHost) -> None:
    """Setting RETAINED_IS_RECLAIMABLE: only what has a verified backup counts as available, and only that goes."""
    host.start(
        COCOON_NODE_RETAINED_IS_RECLAIMABLE="true",
        COCOON_NODE_LOW_WATERMARK_PERCENT="30",
        COCOON_NODE_HIGH_WATERMARK_PERCENT="90",
    )
    empty = host.allocatable()
    for name, backed_up in (("vk-ns-copied", True), ("vk-ns-only", False)):
        host.write(name, 10 * MIB)
        wait_for(lambda name=name: name in host.states(), what=f"{name} listed")  # type: ignore[misc] # one str
        host.retain(name, backup_verified=backed_up)
    wait_for(lambda: empty - 11 * MIB <= host.allocatable() <= empty - 10 * MIB, 10, what="one of two sold")
    adjustments = {
        one.reason: one.value
        for resource in ask_report(host.agent.address).resources
        if resource.name == "ephemeral-storage"
        for one in resource.adjustments
    }
    assert 10 * MIB <= adjustments["RETAINED_RECLAIMABLE"] <= 11 * MIB
    # 20 of 64 MiB is a third: above the low watermark, far below the high one.
    wait_for(lambda: host.states() == {"vk-ns-only": "RETAINED"}, 40, what="what was sold collected")
    assert host.under_pressure() is False


def test_a_full_disk_that_collection_cannot_help_is_told(host: StorageHost) -> None:
    """F24: DiskPressure with no byte free, nothing taken that is not ours to take; gone with its cause."""
    host.write("vk-ns-unclaimed", MIB)
    host.start()
    filler = host.agent.root / "somebody-elses"
    fill_up(filler)
    wait_for(lambda: host.under_pressure() is True, 40, what="DiskPressure")
    assert host.states() == {"vk-ns-unclaimed": "UNCLAIMED"}
    filler.unlink()
    wait_for(lambda: host.under_pressure() is False, 40, what="no DiskPressure")


def test_a_full_disk_that_collection_can_help_is_helped(host: StorageHost) -> None:
    """F24: retained snapshots go one by one until the use is below the low watermark; no condition."""
    for number in range(5):
        host.write(f"vk-ns-p{number}", 10 * MIB)
    host.start()
    for number in range(5):
        host.retain(f"vk-ns-p{number}")
    fill_up(host.agent.root / "somebody-elses")
    wait_for(lambda: len(host.states()) == 3, 40, what="two of five collected")
    usage = host.calls.GetCacheUsage(pb.GetCacheUsageRequest())
    assert usage.last_collection.trigger == pb.COLLECTION_TRIGGER_WATERMARK
    assert usage.last_collection.removed_count == 2
    assert host.under_pressure() is False


@pytest.mark.parametrize(("mode", "told"), [("report", [("vk-ns-kept", "WOULD_REMOVE")]), ("off", [])])
def test_during_maintenance_nothing_is_collected(host: StorageHost, mode: str, told: list[tuple[str, str]]) -> None:
    """Setting COLLECTION: neither a person, nor a policy, nor the watermark; the condition says that it is needed."""
    host.write("vk-ns-kept", 60 * MIB)
    host.start(COCOON_NODE_COLLECTION=mode, COCOON_NODE_POLICY_KEEP_AT_MOST="0")
    host.retain("vk-ns-kept")
    items, summary = host.collect()
    assert items == told
    assert summary.deferred_reason == ("COLLECTION_OFF" if mode == "off" else "")
    wait_for(lambda: host.under_pressure() is True, 40, what="DiskPressure")
    assert host.states() == {"vk-ns-kept": "RETAINED"}


def test_ten_thousand_foreign_entries_cost_a_count_and_are_never_touched(
    tmp_path: Path, agent_process: Callable[..., AgentProcess]
) -> None:
    """Files, directories, links and odd names of somebody else: counted, shown, left alone; ours work beside them."""
    agent = agent_process()
    root = agent.root / "snapshots"
    agent.stop()
    for number in range(2500):
        (root / f"file {number}").write_bytes(b"x")
        (root / f"vk-ns-directory-{number}:latest").mkdir()
        (root / f"vk-ns-link-{number}").symlink_to(tmp_path)
        (root / f".hidden-{number}").touch()
    write_snapshot(root, "vk-ns-web", metadata=envelope("vk-ns-web"))
    foreign = {path: seen for path, seen in tree(root).items() if not path.startswith(("vk-ns-web", ".cocoon-node"))}
    began = time.monotonic()
    agent.start()
    took = time.monotonic() - began
    with grpc.insecure_channel(agent.address) as channel:
        calls = SnapshotCacheStub(channel)
        listed = calls.ListSnapshots(pb.ListSnapshotsRequest(), timeout=20)
        assert [one.name for one in listed.snapshots] == ["vk-ns-web"]
        purge = pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name="vk-ns-web"))
        (result,) = calls.PurgeSnapshots(purge, timeout=20).results
        assert result.outcome == pb.PURGE_OUTCOME_PURGED
        link = calls.PurgeSnapshots(pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name="vk-ns-link-7")), timeout=20)
        assert [one.outcome for one in link.results] == [pb.PURGE_OUTCOME_NOTHING_TO_PURGE]
        with urllib.request.urlopen(f"http://{agent.http_address}/metrics", timeout=20) as answer:  # loopback
            assert "cocoon_node_foreign_entries 10000.0" in answer.read().decode().splitlines()
    print(f"started beside 10,000 foreign entries in {took:.1f} s")
    assert {path: seen for path, seen in tree(root).items() if not path.startswith(".cocoon-node")} == foreign
