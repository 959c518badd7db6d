"""A snapshot cache on a real directory store and ledger, with clocks a test sets, restarts and crashes."""

import contextlib
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from agent.snapshots.authority import PERSON, Caller
from agent.snapshots.cache import SnapshotCache
from agent.snapshots.cache_collect import CollectedItem, CollectionSummary
from agent.snapshots.cache_core import CrashPoint, no_crash
from agent.snapshots.cache_purge import PurgeRequest, PurgeResult
from agent.snapshots.cache_settings import CacheSettings
from agent.snapshots.cache_sync import SyncReply, SyncRequest
from agent.snapshots.collection import Policy
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger import Ledger
from agent.snapshots.retention import RetainRequest
from agent.snapshots.stores.contract import Removal, StoredSnapshot, nothing
from agent.snapshots.stores.directory import DirectoryStore
from common.snapshot_words import Owner, PurgeOutcome, PurgeReason, RetainOutcome, RetainReason
from tests.agent.snapshots.stores.harness import envelope, write_snapshot

CLUSTER = "cluster-1"
CRASH_POINTS = [
    "sync-before-commit",
    "sync-after-commit",
    "retain-before-commit",
    "retain-after-commit",
    "release-before-commit",
    "release-after-commit",
    "removal-before-commit",
    "removal-before-store",
    "removal-after-store",
]
"""Every point at which a crash must lose nothing."""
START = 1_700_000_000.0
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass
class SetClock:
    """Two clocks that stand still until a test moves them."""

    wall_now: float = START
    boot_now: float = 1000.0
    boots: int = 1

    def wall(self) -> float:
        return self.wall_now

    def boot(self) -> float:
        return self.boot_now

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def reboot(self, seconds: float = 60.0) -> None:
        """Boot the host anew, which takes so long."""
        self.wall_now += seconds
        self.boot_now = 0.0
        self.boots += 1

    def pass_time(self, seconds: float) -> None:
        """Let time go by on both."""
        self.wall_now += seconds
        self.boot_now += seconds

    def step(self, seconds: float) -> None:
        """Set the wall clock, as people and time synchronisation do."""
        self.wall_now += seconds


def pod(namespace: str, name: str, uid: str = "", **fields: object) -> Owner:
    """Return a managed owner whose VM name is its own, unless `fields` say otherwise."""
    owner = Owner(uid or f"uid-{namespace}-{name}", namespace, name, f"vk-{namespace}-{name}", managed=True)
    return replace(owner, **fields)  # type: ignore[arg-type] # the fields of Owner


class SlowStore(DirectoryStore):
    """A directory store that removes as the engine does: once begun it goes on by itself for a while."""

    removes_at_once = False

    def remove(self, entry: StoredSnapshot, begun: Callable[[], object] = nothing) -> Removal:
        """See `Store.remove`."""
        if self.rescan([entry.name])[entry.name] == entry:
            begun()
            time.sleep(0.002)  # as long as the others take for a few steps of theirs
        return super().remove(entry)


class CacheHost:
    """The disk and the clocks of one host, and the cache that runs on it."""

    def __init__(
        self,
        base: Path,
        settings: CacheSettings | None = None,
        clock: SetClock | None = None,
        crash_point: CrashPoint = no_crash,
        store: type[DirectoryStore] = DirectoryStore,
    ) -> None:
        self.base = base
        self.store = store
        self.root = base / "snapshots"
        self.root.mkdir(parents=True, exist_ok=True)
        self.state_dir = base / "state"
        self.settings = settings or CacheSettings(node_name="node-1")
        self.clock = clock or SetClock()
        self.crash_point = crash_point
        self.controller = Caller(1, CLUSTER)
        self.revision = 0
        self._ids = itertools.count(1)
        self.cache = self._new()

    def _new(self) -> SnapshotCache:
        return SnapshotCache(
            self.settings,
            self.store(str(self.root), cocoon_root_dir=str(self.base)),
            Ledger(str(self.state_dir)),
            self.clock,
            self.crash_point,
        )

    async def open(self) -> None:
        await self.cache.open()

    async def restart(self, settings: CacheSettings | None = None) -> None:
        """End the cache in order and start it again."""
        await self.cache.close()
        self.settings = settings or self.settings
        self.cache = self._new()
        await self.cache.open()

    async def crash(self) -> None:
        """End the cache without letting it write anything more, and start it again."""
        core = self.cache.core
        await core.turns.cancel_running()
        await core.close_parts()
        self.cache = self._new()
        await self.cache.open()

    def write(self, name: str, snapshot_id: str = "") -> str:
        """Put a snapshot into the store as its writers do, in place of what has the name; return its id."""
        chosen = snapshot_id or f"id-{next(self._ids)}"
        shutil.rmtree(self.root / f".pending-{name}", ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.root / name).rename(self.base / f"replaced-{next(self._ids)}")
        write_snapshot(self.root, name, metadata=envelope(name, chosen))
        return chosen

    def delete(self, name: str) -> None:
        """Remove a snapshot as somebody else would."""
        shutil.rmtree(self.root / name)

    def on_disk(self, name: str) -> bool:
        return (self.root / name).is_dir()

    # Calls -------------------------------------------------------------------------------------------------------

    async def sync(self, *owners: Owner, caller: Caller | None = None, revision: int | None = None) -> SyncReply:
        """Sync at the next revision, with the host's own time as the controller's."""
        if revision is None:
            self.revision += 1
        else:
            self.revision = revision
        request = SyncRequest(tuple(owners), self.revision, self.clock.wall())
        return await self.cache.sync_owners(request, caller or self.controller)

    async def retain(self, owner: Owner, caller: Caller | None = None, **fields: object) -> RetainOutcome:
        request = replace(
            RetainRequest(owner, RetainReason.SEAT_RELEASE),
            **fields,  # type: ignore[arg-type] # the fields of RetainRequest
        )
        return (await self.cache.retain(request, caller or self.controller)).outcome

    async def release(self, owner: Owner, caller: Caller | None = None) -> list[str]:
        return [record.name for record in await self.cache.release(owner, caller or self.controller)]

    async def purge(
        self, owner: Owner, caller: Caller | None = None, revision: int | None = None, **fields: bool
    ) -> dict[str, PurgeOutcome]:
        return {result.name: result.outcome for result in await self.purge_results(owner, caller, revision, **fields)}

    async def purge_results(
        self, owner: Owner, caller: Caller | None = None, revision: int | None = None, **fields: bool
    ) -> tuple[PurgeResult, ...]:
        wanted = PurgeRequest(owner, PurgeReason.TEARDOWN, self.revision if revision is None else revision, **fields)
        return await self.cache.purge(wanted, caller or self.controller)

    async def purge_by_person(self, vm_name: str, *, force: bool = False) -> dict[str, PurgeOutcome]:
        return await self.purge(Owner("", "", "", vm_name), PERSON, force=force)

    async def collect(
        self, policy: Policy | None = None, *, dry_run: bool = False, caller: Caller = PERSON
    ) -> tuple[list[CollectedItem], CollectionSummary]:
        """Collect and return the items and the summary."""
        steps = [step async for step in self.cache.collect(caller, policy=policy, dry_run=dry_run)]
        items = [step for step in steps if isinstance(step, CollectedItem)]
        summary = steps[-1]
        assert isinstance(summary, CollectionSummary)
        return items, summary

    async def get(self, name: str) -> KnownSnapshot:
        """Return a snapshot after a look at the store."""
        await self.cache.look()
        return await self.cache.get(name)

    async def state(self, name: str) -> str:
        return (await self.get(name)).state.name


@contextlib.asynccontextmanager
async def opened(host: CacheHost) -> AsyncIterator[CacheHost]:
    """Give an open host and close its cache afterwards."""
    await host.open()
    try:
        yield host
    finally:
        await host.cache.close()
