"""The snapshot cache put together from the agent's settings: store, ledger, cache, upkeep, service, view, metrics.

Why this exists: the running agent and the commands that work on a stopped agent's store need the same parts.
"""

import asyncio
import contextlib
import os

from agent.config import Settings
from agent.snapshots.cache import SnapshotCache
from agent.snapshots.cache_core import CrashPoint, no_crash
from agent.snapshots.cache_metrics import CacheMetrics
from agent.snapshots.cache_settings import CacheSettings, CollectionMode
from agent.snapshots.collection import Policy, Watermarks
from agent.snapshots.errors import SnapshotError, StoreFault, StoreUnavailableError
from agent.snapshots.ledger import Ledger
from agent.snapshots.service import SnapshotCacheService
from agent.snapshots.stores.cocoon import CocoonStore
from agent.snapshots.stores.contract import Store
from agent.snapshots.stores.directory import DirectoryStore
from agent.snapshots.stores.engine_command import EngineSettings
from agent.snapshots.upkeep import Upkeep
from agent.snapshots.view import CacheView

# A Node whose agent says nothing for 40 seconds is lost to the scheduler, and a first look at a large, cold disk takes
# longer. What the host has is safe to tell without it: what is kept already lacks in the free space, and what could be
# given back counts nothing until it is known. It is waited for this long, so that an ordinary start changes no Node.
FIRST_LOOK_SECONDS = 10.0

# Faults that waiting does not cure: the settings are wrong, or another agent runs.
_FATAL = frozenset({StoreFault.WRONG_KIND, StoreFault.LOCKED})


def make_store(settings: Settings) -> Store:
    """Return the configured store; nothing is opened yet."""
    if settings.store == "directory":
        return DirectoryStore(settings.snapshot_dir, cocoon_root_dir=settings.root_dir)
    engine = EngineSettings(
        program=settings.cocoon_bin,
        root_dir=settings.root_dir,
        run_dir=settings.run_dir,
        log_dir=os.path.join(settings.state_dir, "engine-log"),
    )
    return CocoonStore(engine, state_dir=settings.state_dir)


def make_ledger(settings: Settings) -> Ledger:
    """Return the ledger in the state directory; nothing is opened yet."""
    return Ledger(settings.state_dir)


def cache_settings(settings: Settings) -> CacheSettings:
    """Return the settings of the cache."""
    return CacheSettings(
        node_name=settings.node_name,
        trusted_vm_prefixes=settings.trusted_vm_prefixes,
        standalone=settings.standalone,
        collection=CollectionMode(settings.collection),
        policy=Policy(
            max_age_seconds=settings.policy_max_age_seconds,
            max_bytes=settings.policy_max_bytes,
            keep_at_most=settings.policy_keep_at_most,
        ),
        watermarks=Watermarks(
            high_percent=settings.high_watermark_percent,
            low_percent=settings.low_watermark_percent,
            reclaimable=settings.retained_is_reclaimable,
        ),
    )


class SnapshotParts:
    """All parts of one agent's snapshot cache."""

    def __init__(
        self,
        settings: Settings,
        crash_point: CrashPoint = no_crash,
        first_look_seconds: float = FIRST_LOOK_SECONDS,
    ) -> None:
        self.cache = SnapshotCache(
            cache_settings(settings), make_store(settings), make_ledger(settings), crash_point=crash_point
        )
        self.upkeep = Upkeep(self.cache)
        self.service = SnapshotCacheService(self.cache)
        self.view = CacheView(self.cache, self.upkeep)
        self.metrics = CacheMetrics(self.cache, self.upkeep)
        self._first_look_seconds = first_look_seconds
        self._opening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to open the cache; return when it is open, or when the first look takes long. Raises as `opened`."""
        self._opening = asyncio.create_task(self._open())
        await asyncio.wait({self._opening}, timeout=self._first_look_seconds)
        if self._opening.done():
            await self._opening

    async def opened(self) -> None:
        """Return when the cache is open and its upkeep has begun; after `start`.

        Raises LedgerUnavailableError, and StoreUnavailableError when waiting would not help; any other fault of the
        store is answered with STORE_UNAVAILABLE until it is gone.
        """
        if self._opening is not None:
            await asyncio.shield(self._opening)

    async def _open(self) -> None:
        await self.cache.open()
        fault: StoreUnavailableError | None = self.cache.core.store_fault
        if fault is not None and fault.fault in _FATAL:
            raise fault
        self.upkeep.start()

    def end_watches(self) -> None:
        """End every watch, so that the server can stop."""
        self.service.close()

    async def stop(self) -> None:
        """End the upkeep and close the cache. May be repeated."""
        if self._opening is not None:
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, SnapshotError):
                await self._opening
        await self.upkeep.stop()
        await self.cache.close()
