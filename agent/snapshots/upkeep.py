"""What the cache does by itself: looks for changes, keeps the file system below its watermark, applies policies.

Why this exists: each of these goes on at its own pace, and none of them may be stopped by a fault of another.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from agent.snapshots.authority import PERSON
from agent.snapshots.cache import SnapshotCache
from agent.snapshots.cache_collect import CollectionSummary, CollectionTrigger
from agent.snapshots.collection import Policy, above_high, pressure_of
from agent.snapshots.errors import LedgerUnavailableError, SnapshotError, StoreUnavailableError

_log = logging.getLogger(__name__)


class Upkeep:
    """The loops of a cache that is open.

    `disk_pressure` tells why there is too little space though collection did what it may; empty when there is enough.
    """

    def __init__(self, cache: SnapshotCache) -> None:
        self._cache = cache
        self._loops: list[asyncio.Task[None]] = []
        self.disk_pressure = ""

    def start(self) -> None:
        """Begin the loops."""
        settings = self._cache.settings
        for period_seconds, step in (
            (settings.refresh_seconds, self.refresh),
            (settings.full_scan_seconds, self.rescan),
            (settings.watermark_seconds, self.check_watermark),
            (settings.policy_seconds, self.apply_policy),
        ):
            self._loops.append(asyncio.create_task(_every(period_seconds, step)))

    async def stop(self) -> None:
        """End the loops; what one of them has begun comes to its end. May be repeated."""
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops.clear()

    async def refresh(self) -> None:
        """Notice changes in the store, let promises expire, commit what was observed."""
        with contextlib.suppress(StoreUnavailableError):
            await self._cache.look()
        await self._cache.settle()

    async def rescan(self) -> None:
        """Read the whole store again."""
        with contextlib.suppress(StoreUnavailableError):
            await self._cache.look(everything=True)

    async def check_watermark(self) -> None:
        """Collect when the file system is too full, and say so when that does not help."""
        with contextlib.suppress(StoreUnavailableError):
            watermarks = self._cache.settings.watermarks
            if pressure_of(await self._cache.disk(), watermarks):
                # No policy: this run is for the watermark alone.
                reason = await self._collect(CollectionTrigger.WATERMARK, Policy())
                full = above_high(await self._cache.disk(), watermarks)
                self.disk_pressure = (reason or "nothing more may be collected") if full else ""
            else:
                self.disk_pressure = ""
        with contextlib.suppress(LedgerUnavailableError):
            await self._cache.maintain_ledger()

    async def apply_policy(self) -> None:
        """Collect what the configured policy evicts."""
        if self._cache.settings.policy:
            with contextlib.suppress(StoreUnavailableError):
                await self._collect(CollectionTrigger.POLICY, None)

    async def _collect(self, trigger: CollectionTrigger, policy: Policy | None) -> str:
        """Run a collection and return why it did nothing, if so; a store that is not there is raised."""
        reason = ""
        try:
            async with contextlib.aclosing(self._cache.collect(PERSON, trigger=trigger, policy=policy)) as steps:
                async for step in steps:
                    if isinstance(step, CollectionSummary):
                        reason = step.deferred_reason
                        if step.removed_count:
                            _log.info("collected %d snapshots, %d bytes", step.removed_count, step.removed_bytes)
        except StoreUnavailableError:
            raise
        except SnapshotError as error:
            return error.reason
        return reason


async def _every(period_seconds: float, step: Callable[[], Awaitable[None]]) -> None:
    """Run a step again and again, whatever becomes of it."""
    while True:
        await asyncio.sleep(period_seconds)
        try:
            await step()
        except SnapshotError as error:
            _log.warning("%s", error)
        except Exception:
            # A loop that ended would leave the disk to fill up unseen.
            _log.exception("a periodic look of the snapshot cache failed")
