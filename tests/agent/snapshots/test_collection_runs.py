"""A collection does what its plan says, item by item and byte by byte, whatever is in the store."""

import asyncio
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.snapshots.cache_collect import CollectionOutcome
from agent.snapshots.collection import Policy
from common.snapshot_words import RetainReason
from tests.agent.snapshots.caching import HOUR, START, CacheHost, opened, pod
from tests.agent.snapshots.stores.harness import envelope, write_snapshot


@dataclass(frozen=True)
class Kept:
    """How a snapshot is kept."""

    reason: RetainReason
    backup_verified: bool
    ttl_seconds: float | None


@dataclass(frozen=True)
class Made:
    """One snapshot of an inventory; `linked` shares a file with all other linked ones, `damaged` makes it INVALID."""

    pages: int
    age_hours: int
    kept: Kept | None
    in_use: bool
    linked: bool
    damaged: bool


KEPT = st.builds(
    Kept,
    reason=st.sampled_from(list(RetainReason)),
    backup_verified=st.booleans(),
    ttl_seconds=st.sampled_from([None, HOUR, 100 * HOUR]),
)
INVENTORIES = st.lists(
    st.builds(
        Made,
        pages=st.integers(0, 6),
        age_hours=st.integers(1, 500),
        kept=st.none() | KEPT,
        in_use=st.booleans(),
        linked=st.booleans(),
        damaged=st.integers(0, 9).map(lambda one: one == 0),
    ),
    min_size=2,
    max_size=9,
)
POLICIES = st.builds(
    Policy,
    max_age_seconds=st.none() | st.integers(1, 600).map(lambda hours: hours * HOUR),
    max_bytes=st.none() | st.integers(1, 40).map(lambda pages: pages * 4096),
    keep_at_most=st.none() | st.integers(0, 4),
)


def disk_bytes(root: Path) -> int:
    """Return what the snapshots in a store occupy, each file once."""
    found: dict[int, int] = {}
    for entry in root.iterdir():
        if entry.name.startswith("vk-"):
            for parent, _, files in os.walk(entry):
                for path in (Path(parent), *(Path(parent) / name for name in files)):
                    status = path.lstat()
                    found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def write(host: CacheHost, number: int, made: Made) -> None:
    name = f"vk-ns-p{number}"
    files = {"memory-ranges": b"m" * 4096 * made.pages, "state.json": b"{}"}
    used_at = START - made.age_hours * HOUR
    created = datetime.fromtimestamp(used_at, UTC).isoformat()
    damage = {"files": {"memory-ranges": 1 << 40}} if made.damaged else {}
    write_snapshot(
        host.root, name, files, metadata=envelope(name, f"id-{number}", memory=0, created_at=created, **damage)
    )
    if made.linked:
        shared = host.base / "shared-file"
        if shared.exists():
            os.link(shared, host.root / name / "cow.raw")
        else:
            (host.root / name / "cow.raw").write_bytes(b"c" * 8192)
            os.link(host.root / name / "cow.raw", shared)
    for path in (*(host.root / name).iterdir(), host.root / name):
        os.utime(path, (used_at, used_at))


async def collect_twice(base: Path, inventory: list[Made], policy: Policy) -> list[str]:
    """Make an inventory, collect dry and for real, compare; return the reasons for which something went."""
    host = CacheHost(base)
    for number, made in enumerate(inventory):
        write(host, number, made)
    # From now on only the snapshots link to what they share.
    (host.base / "shared-file").unlink(missing_ok=True)
    async with opened(host):
        pods = [pod("ns", f"p{number}") for number in range(len(inventory))]
        running = [one for one, made in zip(pods, inventory, strict=True) if made.in_use]
        await host.sync(*running)
        for one, made in zip(pods, inventory, strict=True):
            if made.kept is not None and not made.damaged:
                kept = made.kept
                await host.retain(
                    one, reason=kept.reason, backup_verified=kept.backup_verified, ttl_seconds=kept.ttl_seconds
                )
        host.clock.pass_time(25 * HOUR)
        await host.sync(*running)
        planned, would = await host.collect(policy, dry_run=True)
        occupied = disk_bytes(host.root)
        standing = {path.name for path in host.root.iterdir() if path.name.startswith("vk-")}
        done, did = await host.collect(policy)
        assert done == [replace(item, outcome=CollectionOutcome.REMOVED) for item in planned]
        assert replace(did, started_at=0.0, ended_at=0.0, dry_run=True) == replace(would, started_at=0.0, ended_at=0.0)
        left = {path.name for path in host.root.iterdir() if path.name.startswith("vk-")}
        assert left == standing - {item.name for item in done}
        assert left >= {one.vm_name for one in running}
        assert occupied - disk_bytes(host.root) == sum(item.bytes for item in done)
        again, _ = await host.collect(policy)
        assert again == []
        return [item.reason.name for item in done]


@pytest.mark.timeout(1800)
def test_a_run_is_its_dry_run_item_by_item(long_profile: bool) -> None:
    """The plan names what goes, in which order, for which reason, and the bytes that really come back."""

    @settings(max_examples=1000 if long_profile else 40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(INVENTORIES, POLICIES)
    def check(inventory: list[Made], policy: Policy) -> None:
        with tempfile.TemporaryDirectory() as directory:
            reasons.update(asyncio.run(collect_twice(Path(directory), inventory, policy)))

    reasons: Counter[str] = Counter()
    check()
    print(f"collected as planned, by reason: {dict(reasons)}")
    assert reasons.total() > 5
