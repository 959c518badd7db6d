"""The snapshot cache: opens store and ledger, keeps the inventory fresh, and offers the use cases.

Why this exists: the service, the command line and the host's resources ask one object. A store that is not the right
disk does not stop the agent: the cache answers STORE_UNAVAILABLE and tries again until the disk is back.
"""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from dataclasses import dataclass

from agent.snapshots import cache_purge, cache_retain, cache_sync
from agent.snapshots.authority import Caller
from agent.snapshots.cache_candidates import disk_use
from agent.snapshots.cache_collect import (
    CollectedItem,
    CollectionSummary,
    CollectionTrigger,
    Collector,
)
from agent.snapshots.cache_core import CacheCore, CrashPoint, no_crash
from agent.snapshots.cache_purge import PurgeRequest, PurgeResult
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.cache_retain import Retained
from agent.snapshots.cache_settings import CacheSettings
from agent.snapshots.cache_sync import SyncReply, SyncRequest
from agent.snapshots.clock import Clock, HostClock
from agent.snapshots.collection import DiskUse, Policy
from agent.snapshots.errors import (
    InvalidFieldError,
    LedgerUnavailableError,
    SnapshotNotFoundError,
    StoreFault,
    StoreUnavailableError,
    quoted,
)
from agent.snapshots.feed import Watcher
from agent.snapshots.inventory import KnownSnapshot, StateTotal
from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.model import SnapshotState, SyncPoint
from agent.snapshots.names import require_readable_name
from agent.snapshots.opening import open_ledger, open_store
from agent.snapshots.retention import RetainRequest
from agent.snapshots.stores.contract import Store
from common.snapshot_words import Owner

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """One page of snapshots, the name the next one begins after (empty on the last), and how many fit the filters."""

    snapshots: tuple[KnownSnapshot, ...]
    next_after: str
    total: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """The cache as a whole. `applied` is the last owner sync of this start."""

    totals: dict[SnapshotState, StateTotal]
    disk: DiskUse
    last_collection: CollectionSummary | None
    epoch: int | None
    applied: SyncPoint | None
    synced_at: float | None
    clock_in_doubt: bool


class SnapshotCache:
    """The use cases. All are coroutines of one event loop and raise the types of `agent.snapshots.errors`."""

    def __init__(
        self,
        settings: CacheSettings,
        store: Store,
        ledger: Ledger,
        clock: Clock | None = None,
        crash_point: CrashPoint = no_crash,
    ) -> None:
        """Put the parts together; `open` opens them."""
        self.core = CacheCore(settings, store, ledger, clock or HostClock(), crash_point)
        self.settings = settings
        self._refresher = Refresher(self.core)
        self._collector = Collector(self.core, self._refresher)
        self.has_begun = False
        """Whether the first look has ended; until then what is not known is not absent."""

    # Life --------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the ledger, then the store, and take the first look.

        Raises LedgerUnavailableError when there is no ledger to work with. A store that is not available is tried
        again by the loops.
        """
        await open_ledger(self.core, self._refresher)
        with contextlib.suppress(StoreUnavailableError):
            await self.core.turns.exclusively(lambda: open_store(self.core, self._refresher))
        self.has_begun = True

    async def close(self) -> None:
        """Let what has begun come to its end, and close store and ledger. May be repeated."""
        self.core.closed = True
        self.core.feed.wake_all()
        await self.core.turns.settle_running()
        await self.core.flush()
        await self.core.close_parts()

    @property
    def last_collection(self) -> CollectionSummary | None:
        """How the last collection ended; None before the first."""
        return self._collector.last

    # Changes -----------------------------------------------------------------------------------------------------

    async def sync_owners(self, request: SyncRequest, caller: Caller) -> SyncReply:
        """Apply the full set of owners; see `cache_sync.sync_owners`."""
        await self._opened()
        return await cache_sync.sync_owners(self.core, self._refresher, request, caller)

    async def retain(self, request: RetainRequest, caller: Caller) -> Retained:
        """Keep an owner's snapshots; see `cache_retain.retain`."""
        await self._opened()
        return await cache_retain.retain(self.core, self._refresher, request, caller)

    async def release(self, owner: Owner, caller: Caller) -> tuple[KnownSnapshot, ...]:
        """End an owner's retentions; see `cache_retain.release`."""
        await self._opened()
        return await cache_retain.release(self.core, owner, caller)

    async def purge(self, request: PurgeRequest, caller: Caller) -> tuple[PurgeResult, ...]:
        """Remove a VM's snapshots as far as the rules allow; see `cache_purge.purge`."""
        self._require_begun()
        with contextlib.suppress(StoreUnavailableError):
            await self._opened()
        return await cache_purge.purge(self.core, self._refresher, request, caller)

    async def verify(self, name: str, expected_snapshot_id: str) -> KnownSnapshot:
        """Check a snapshot before it is restored; see `cache_retain.verify`."""
        require_readable_name(name)
        await self._opened()
        return await cache_retain.verify(self.core, self._refresher, name, expected_snapshot_id)

    async def collect(
        self,
        caller: Caller,
        *,
        trigger: CollectionTrigger = CollectionTrigger.REQUESTED,
        policy: Policy | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[CollectedItem | CollectionSummary, None]:
        """Collect, and yield each item as it is done, the summary last; see `Collector.collect`."""
        await self._opened()
        steps = self._collector.collect(trigger, caller, policy=policy, dry_run=dry_run)
        async with contextlib.aclosing(steps):
            async for step in steps:
                yield step

    # Questions ---------------------------------------------------------------------------------------------------

    async def page(
        self, *, after: str = "", size: int = 0, states: Collection[SnapshotState] | None = None, vm_name: str = ""
    ) -> Page:
        """Return the snapshots after a name, in these states or in any; size 0 means 100, above 1000 means 1000.

        Raises InvalidFieldError for a negative size, StoreUnavailableError.
        """
        if size < 0:
            raise InvalidFieldError(f"page_size is {size}, must not be negative", field="page_size")
        await self.require_available_now()
        limit = min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        inventory = self.core.inventory
        if vm_name:
            found = [record for record in inventory.of_vm(vm_name) if states is None or record.state in states]
            total = len(found)
            rest = [record for record in found if record.name > after][: limit + 1]
        else:
            totals = inventory.totals()
            total = sum(totals[state].count for state in (totals if states is None else states))
            rest = inventory.page(after, limit + 1, states)
        shown = tuple(rest[:limit])
        return Page(shown, shown[-1].name if len(rest) > limit else "", total)

    async def get(self, name: str) -> KnownSnapshot:
        """Return one snapshot. Raises InvalidNameError, SnapshotNotFoundError, StoreUnavailableError."""
        require_readable_name(name)
        await self.require_available_now()
        record = self.core.inventory.get(name)
        if record is None:
            raise SnapshotNotFoundError(f"there is no snapshot {quoted(name)} in {self.core.store.location}")
        return record

    async def usage(self) -> CacheUsage:
        """Return counts and bytes, the file system's use and what is known of owners. Raises StoreUnavailableError."""
        disk = await self.disk()
        return CacheUsage(
            totals=self.core.inventory.totals(),
            disk=disk,
            last_collection=self.last_collection,
            epoch=self.core.state.authority.epoch,
            applied=self.core.applied,
            synced_at=self.core.state.synced_at if self.core.applied else None,
            clock_in_doubt=self.core.moment().clock_in_doubt,
        )

    async def disk(self) -> DiskUse:
        """Return how full the store's file system is. Raises StoreUnavailableError."""
        await self.require_available_now()
        return await disk_use(self.core)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Give a watcher of changes. Raises StoreUnavailableError."""
        await self.require_available_now()
        with self.core.feed.watching() as watcher:
            yield watcher

    def require_available(self) -> None:
        """Raise StoreUnavailableError when the store was not there at the last look."""
        if self.core.store_fault is not None:
            raise self.core.store_fault

    # Upkeep ------------------------------------------------------------------------------------------------------

    async def look(self, *, everything: bool = False) -> None:
        """Notice what has changed in the store, or read it whole; raises StoreUnavailableError."""
        await self._opened()
        if everything:
            await self.core.turns.exclusively(self._refresher.look_at_everything)
        elif await self._refresher.sees_change():
            await self.core.turns.exclusively(self._refresher.look_for_changes)

    async def settle(self) -> None:
        """Let promises end whose time is over, and commit what was observed."""
        await self.core.turns.exclusively(self._settle)

    async def maintain_ledger(self) -> None:
        """Keep the ledger's files small. Raises LedgerUnavailableError."""
        await self.core.journal.in_thread(self.core.journal.ledger.maintain)

    async def confirm_clock(self) -> None:
        """Believe the wall clock again, by a person's word."""
        await self.core.turns.exclusively(self._confirm_clock)

    async def _settle(self) -> None:
        self.core.expire()
        await self.core.flush()

    async def _confirm_clock(self) -> None:
        self.core.confirm_clock()
        with contextlib.suppress(LedgerUnavailableError):
            await self.core.commit(LedgerChange())

    async def _opened(self) -> None:
        """Open the store again if it was not available."""
        self._require_begun()
        if self.core.store_fault is not None:
            await self.core.turns.exclusively(self._open_again)

    async def _open_again(self) -> None:
        # Of many callers that wait for the lock, the first opens it for all.
        if self.core.store_fault is not None:
            await open_store(self.core, self._refresher)

    def _require_begun(self) -> None:
        if not self.has_begun:
            raise StoreUnavailableError("the agent is starting; try again in a moment", fault=StoreFault.NOT_OPEN)

    async def require_available_now(self) -> None:
        """Make sure that the store is there right now, so that what memory says is the truth.

        Raises StoreUnavailableError.
        """
        await self._opened()
        await self.core.in_store(self.core.store.check)
