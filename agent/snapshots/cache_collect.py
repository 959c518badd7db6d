"""Collections: make the plan, tell it, and remove item by item as long as each is still what the plan saw.

Why this exists: a collection may take long, and the world goes on meanwhile. So the lock is taken for one item at a
time, every item is decided again right before its removal, and what has changed is left alone.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace

from agent.snapshots.authority import Caller, admit
from agent.snapshots.cache_candidates import candidate_of, disk_use, picture_is_complete
from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.cache_removal import BegunRemoval, end_removal, remove_snapshot, require_ledger
from agent.snapshots.cache_settings import CollectionMode
from agent.snapshots.collection import (
    CollectionReason,
    PlannedRemoval,
    Policy,
    is_collectable,
    plan_collection,
    pressure_of,
)
from agent.snapshots.errors import LedgerUnavailableError, SnapshotError, StoreUnavailableError, TooManyRequestsError
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.model import DeferredReason, Retention, SnapshotState
from agent.snapshots.stores.contract import Removal

MAX_WAITING = 4
_COLLECTABLE = (SnapshotState.UNCLAIMED, SnapshotState.INVALID, SnapshotState.RETAINED)


class CollectionTrigger(enum.Enum):
    """Why a collection runs; values are those of the API."""

    REQUESTED = 1
    POLICY = 2
    WATERMARK = 3


class CollectionOutcome(enum.Enum):
    """What a collection did with one snapshot; values are those of the API."""

    REMOVED = 1
    WOULD_REMOVE = 2
    SKIPPED = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class CollectedItem:
    """One item of the plan and what was done with it."""

    name: str
    bytes: int
    last_use_at: float
    reason: CollectionReason
    outcome: CollectionOutcome
    message: str = ""


@dataclass(frozen=True, slots=True)
class CollectionSummary:
    """How a collection ended. `deferred_reason` is set when nothing was done at all."""

    trigger: CollectionTrigger
    started_at: float
    ended_at: float
    removed_count: int = 0
    removed_bytes: int = 0
    skipped_count: int = 0
    deferred_reason: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class _Doomed:
    """An item of the plan with the snapshot it was made for."""

    item: PlannedRemoval
    key: tuple[str, str]
    version: object
    state: SnapshotState
    retentions: tuple[Retention, ...]


class Collector:
    """Runs one collection at a time and lets a few wait."""

    def __init__(self, core: CacheCore, refresher: Refresher) -> None:
        self._core = core
        self._refresher = refresher
        self._turn = asyncio.Lock()
        self._present = 0
        self.last: CollectionSummary | None = None

    async def collect(
        self, trigger: CollectionTrigger, caller: Caller, *, policy: Policy | None = None, dry_run: bool = False
    ) -> AsyncGenerator[CollectedItem | CollectionSummary, None]:
        """Yield each item as it is done, the summary last. `policy` takes the place of the configured one.

        Raises WrongClusterError, StaleControllerEpochError, TooManyRequestsError, StoreUnavailableError,
        LedgerUnavailableError, all before the first item.
        """
        # Counted, not asked of the lock: between two turns it is nobody's, while as many wait for it as may.
        if self._present > MAX_WAITING:
            raise TooManyRequestsError(f"a collection is running and {MAX_WAITING} are waiting; try again later")
        self._present += 1
        try:
            run = self._run(trigger, caller, policy, dry_run=dry_run)
            async with self._turn, contextlib.aclosing(run) as steps:
                async for step in steps:
                    yield step
        finally:
            self._present -= 1

    async def _run(
        self, trigger: CollectionTrigger, caller: Caller, policy: Policy | None, *, dry_run: bool
    ) -> AsyncGenerator[CollectedItem | CollectionSummary, None]:
        mode = self._core.settings.collection
        dry = dry_run or mode is CollectionMode.REPORT
        summary = CollectionSummary(trigger, self._core.clock.wall(), 0.0, dry_run=dry)
        deferred, plan = await self._prepare(caller, policy, dry_run=dry)
        for doomed in plan:
            done = _would(doomed.item) if dry else await self._remove(doomed)
            summary = _count(summary, done)
            yield done
        summary = replace(summary, ended_at=self._core.clock.wall(), deferred_reason=deferred)
        if not dry_run and (plan or trigger is not CollectionTrigger.WATERMARK):
            self.last = summary
        yield summary

    async def _prepare(self, caller: Caller, policy: Policy | None, *, dry_run: bool) -> tuple[str, list[_Doomed]]:
        return await self._core.turns.exclusively(lambda: self._plan(caller, policy, dry_run=dry_run))

    async def _plan(self, caller: Caller, policy: Policy | None, *, dry_run: bool) -> tuple[str, list[_Doomed]]:
        """Return why nothing may be done, or the plan. Called under the lock."""
        core = self._core
        core.require_acceptance()
        authority = admit(core.state.authority, caller)
        if core.settings.collection is CollectionMode.OFF:
            return DeferredReason.COLLECTION_OFF.value, []
        await self._refresher.look_for_changes(ask_engine=True)
        await require_ledger(core)
        core.expire()
        if not dry_run and authority != core.state.authority:
            await core.commit(LedgerChange(state=replace(core.state, authority=authority)))
        if not picture_is_complete(core):
            return DeferredReason.OWNER_SYNC_BEHIND.value, []
        return await self._planned(core.settings.policy if policy is None else policy)

    async def _planned(self, policy: Policy) -> tuple[str, list[_Doomed]]:
        core = self._core
        pressure = pressure_of(await disk_use(core), core.settings.watermarks)
        if not policy and not pressure:
            return DeferredReason.NO_POLICY.value, []
        moment = core.moment()
        candidates = [candidate_of(core, record) for record in core.inventory.in_states(*_COLLECTABLE)]
        plan = await core.in_store(
            plan_collection, candidates, policy, pressure, moment, grace_seconds=core.settings.grace_seconds
        )
        doomed = []
        for item in plan:
            record = core.inventory.get(item.name)
            if record is not None:
                doomed.append(_Doomed(item, record.key, record.entry.version, record.state, record.facts.retentions))
        if not doomed and moment.clock_in_doubt:
            return DeferredReason.CLOCK_IN_DOUBT.value, []
        return "", doomed

    async def _remove(self, doomed: _Doomed) -> CollectedItem:
        return await self._core.turns.one_removal(lambda: self._remove_in_turn(doomed))

    async def _remove_in_turn(self, doomed: _Doomed) -> CollectedItem:
        """Remove one item, without the lock while the store takes its time."""
        core = self._core
        if not core.store.removes_at_once:
            await core.in_store(core.store.wait_for_resumed)
        async with core.turns.lock:
            step = await self._remove_if_unchanged(doomed)
        if not isinstance(step, BegunRemoval):
            return step
        await step.wait()
        async with core.turns.lock:
            try:
                return self._removed(doomed, end_removal(core, step))
            except SnapshotError as error:
                return await self._failed(doomed, error)

    async def _remove_if_unchanged(self, doomed: _Doomed) -> CollectedItem | BegunRemoval:
        """Remove one item if it is still what the plan saw. Called under the lock."""
        core = self._core
        core.expire()
        try:
            if doomed.state is SnapshotState.INVALID:
                # What was too short may have been completed in place since, and may be what somebody is promised.
                await self._refresher.look_at([doomed.item.name])
            record = core.inventory.get(doomed.item.name)
            changed = _why_not(core, doomed, record)
            if changed or record is None:
                return _done(doomed.item, CollectionOutcome.SKIPPED, changed)
            removal = await remove_snapshot(core, record)
        except SnapshotError as error:
            return await self._failed(doomed, error)
        return removal if isinstance(removal, BegunRemoval) else self._removed(doomed, removal)

    async def _failed(self, doomed: _Doomed, error: SnapshotError) -> CollectedItem:
        if isinstance(error, StoreUnavailableError | LedgerUnavailableError):
            return _done(doomed.item, CollectionOutcome.FAILED, str(error))
        await self._refresher.look_at([doomed.item.name])
        return _done(doomed.item, CollectionOutcome.SKIPPED, str(error))

    def _removed(self, doomed: _Doomed, removal: Removal) -> CollectedItem:
        if removal.already_gone:
            return _done(doomed.item, CollectionOutcome.SKIPPED, "it is gone")
        counters, reason = self._core.counters, doomed.item.reason
        counters.collected[reason] = counters.collected.get(reason, 0) + 1
        counters.collected_bytes[reason] = counters.collected_bytes.get(reason, 0) + doomed.item.bytes
        return _done(doomed.item, CollectionOutcome.REMOVED, "")


def _why_not(core: CacheCore, doomed: _Doomed, record: KnownSnapshot | None) -> str:
    """Return what has changed since the plan was made; empty when nothing has."""
    if record is None:
        return "it is gone"
    if record.key != doomed.key or record.entry.version != doomed.version:
        return "another snapshot stands under the name now"
    if record.facts.retentions != doomed.retentions:
        return "its retention has changed"
    if core.is_restoring(record) or record.last_use_at != doomed.item.last_use_at:
        return "it has been used since the plan was made"
    collectable = is_collectable(candidate_of(core, record), core.moment(), core.settings.grace_seconds)
    if record.state is not doomed.state or not collectable:
        return f"it is {record.state.name} now"
    if not picture_is_complete(core):
        return "the last owner sync is too old"
    return ""


def _would(item: PlannedRemoval) -> CollectedItem:
    return _done(item, CollectionOutcome.WOULD_REMOVE, "")


def _done(item: PlannedRemoval, outcome: CollectionOutcome, message: str) -> CollectedItem:
    return CollectedItem(item.name, item.bytes, item.last_use_at, item.reason, outcome, message)


def _count(summary: CollectionSummary, done: CollectedItem) -> CollectionSummary:
    if done.outcome in (CollectionOutcome.REMOVED, CollectionOutcome.WOULD_REMOVE):
        return replace(
            summary,
            removed_count=summary.removed_count + 1,
            removed_bytes=summary.removed_bytes + done.bytes,
        )
    return replace(summary, skipped_count=summary.skipped_count + 1)
