"""Purging the snapshots of a VM name: look, decide each by the rules, remove what the decision allows.

Why this exists: this is the call that destroys. It never trusts memory alone: the names are read again first, and
whatever cannot be read now is deferred, not guessed.
"""

from dataclasses import dataclass, replace

from agent.snapshots.authority import Caller, admit
from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.cache_removal import (
    BegunRemoval,
    end_removal,
    remove_as_known,
    remove_snapshot,
    require_ledger,
)
from agent.snapshots.errors import (
    InvalidFieldError,
    LedgerUnavailableError,
    SnapshotChangedError,
    SnapshotError,
    SnapshotInUseError,
    SnapshotPendingError,
    StoreUnavailableError,
)
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.model import DeferredReason, SnapshotState, SyncPoint
from agent.snapshots.names import owned_names, owning_vm, require_purge_name
from agent.snapshots.purging import PurgeDecision, PurgeOrder, PurgeTarget, decide_purge
from agent.snapshots.stores.contract import Removal
from common.snapshot_words import Owner, PurgeOutcome, PurgeReason

_SKIPPED: dict[type[SnapshotError], PurgeOutcome] = {
    SnapshotInUseError: PurgeOutcome.SKIPPED_IN_USE,
    SnapshotPendingError: PurgeOutcome.SKIPPED_PENDING,
    SnapshotChangedError: PurgeOutcome.SKIPPED_NEWER,
}


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """What is asked for; `sync_revision` counts with a controller only, `force` with a person only."""

    owner: Owner
    reason: PurgeReason
    sync_revision: int = 0
    force: bool = False
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What was done with one snapshot; `bytes` is the disk space it occupied."""

    name: str
    outcome: PurgeOutcome
    bytes: int = 0
    deferred_reason: str = ""
    message: str = ""


async def purge(
    core: CacheCore, refresher: Refresher, request: PurgeRequest, caller: Caller
) -> tuple[PurgeResult, ...]:
    """Purge, and return one result a snapshot, sorted by name. Takes its turn among removals, and the lock.

    Raises InvalidNameError, InvalidFieldError, WrongClusterError, StaleControllerEpochError, and for a person
    StoreUnavailableError and LedgerUnavailableError, where a controller is told DEFERRED.
    """
    _validate(request, caller)
    results = await core.turns.one_removal(lambda: _purge_in_turn(core, refresher, request, caller))
    core.counters.deferred += sum(result.outcome is PurgeOutcome.DEFERRED for result in results)
    return results


def _validate(request: PurgeRequest, caller: Caller) -> None:
    require_purge_name(request.owner.vm_name)
    if caller.is_person:
        return
    if request.force:
        raise InvalidFieldError("force is for people; a controller releases the retention first", field="force")
    if request.sync_revision < 0:
        raise InvalidFieldError("sync_revision must not be negative", field="sync_revision")
    for field in ("namespace", "pod_name"):
        if not getattr(request.owner, field):
            raise InvalidFieldError(f"owner.{field} is required with controller_epoch", field=f"owner.{field}")


async def _purge_in_turn(
    core: CacheCore, refresher: Refresher, request: PurgeRequest, caller: Caller
) -> tuple[PurgeResult, ...]:
    """Purge without the lock while the store takes its time; whatever is left is looked at and decided again then."""
    done: dict[str, PurgeResult] = {}
    if not core.store.removes_at_once:
        await core.in_store(core.store.wait_for_resumed)
    while True:
        async with core.turns.lock:
            step = await _purge(core, refresher, request, caller, done)
        if not isinstance(step, BegunRemoval):
            return step
        await step.wait()
        async with core.turns.lock:
            done[step.record.name] = await _ended(core, refresher, step, person=caller.is_person)


async def _purge(
    core: CacheCore, refresher: Refresher, request: PurgeRequest, caller: Caller, done: dict[str, PurgeResult]
) -> tuple[PurgeResult, ...] | BegunRemoval:
    """Purge what is not `done` yet. Called under the lock."""
    core.require_acceptance()
    authority = admit(core.state.authority, caller)
    names = [name for name in owned_names(request.owner.vm_name) if owning_vm(name)]
    point = None if caller.epoch is None else SyncPoint(caller.epoch, request.sync_revision)
    order = PurgeOrder(request.owner, point, request.force)
    is_plain = not caller.is_person and not request.dry_run and authority == core.state.authority
    if is_plain and core.store.removes_at_once:
        as_known = await _purge_as_known(core, refresher, order, names)
        if as_known is not None:
            return as_known
    try:
        await _look(core, refresher, names, caller)
    except (StoreUnavailableError, LedgerUnavailableError) as error:
        if caller.is_person:
            raise
        return (*done.values(), _deferred(request.owner.vm_name, error))
    if not request.dry_run and authority != core.state.authority:
        await core.commit(LedgerChange(state=replace(core.state, authority=authority)))
    untouched: dict[str, PurgeResult] = {}
    for record in _snapshots_of(core, names):
        if record.name in done:
            continue
        decision = _decide(core, order, record)
        if decision.removes and not request.dry_run:
            result = await _remove(core, refresher, record, person=caller.is_person)
            if isinstance(result, BegunRemoval):
                return result
            done[record.name] = result
        else:
            untouched[record.name] = _untouched(record, decision)
    results = done | untouched
    return tuple(results[name] for name in sorted(results)) or (
        PurgeResult(request.owner.vm_name, PurgeOutcome.NOTHING_TO_PURGE, message="the VM has no snapshot here"),
    )


async def _purge_as_known(
    core: CacheCore, refresher: Refresher, order: PurgeOrder, names: list[str]
) -> tuple[PurgeResult, ...] | None:
    """Purge what memory says may go, if the store still shows what memory knows; None when the long way is needed.

    The decision is the same; it is only made before the look, so that look and removal are one step. Whatever is out
    of the ordinary takes the long way, and nothing was removed before.
    """
    core.expire()
    decided = [(record, _decide(core, order, record)) for record in _snapshots_of(core, names)]
    doomed = [record for record, decision in decided if decision.removes]
    if not doomed or core.journal.fault is not None:
        return None
    try:
        outcomes = await remove_as_known(core, names, doomed)
    except (StoreUnavailableError, LedgerUnavailableError):
        return None
    if outcomes is None:
        return None
    removed = {
        record.name: await _result(core, refresher, record, outcome)
        for record, outcome in zip(doomed, outcomes, strict=True)
    }
    return tuple(removed.get(record.name) or _untouched(record, decision) for record, decision in decided)


async def _look(core: CacheCore, refresher: Refresher, names: list[str], caller: Caller) -> None:
    """Read the names again; for a person, who asks once, also what is being written. Raises when that is impossible."""
    if caller.is_person:
        await refresher.look_for_changes(ask_engine=True)
    await refresher.look_at(names)
    core.expire()
    await require_ledger(core)


def _snapshots_of(core: CacheCore, names: list[str]) -> list[KnownSnapshot]:
    found = [record for name in names if (record := core.inventory.get(name)) is not None]
    pending = core.inventory.in_states(SnapshotState.PENDING)
    found.extend(record for record in pending if record.entry.target_name in names and record.name not in names)
    return sorted(found, key=lambda record: record.name)


def _decide(core: CacheCore, order: PurgeOrder, record: KnownSnapshot) -> PurgeDecision:
    return decide_purge(
        order,
        PurgeTarget(
            name=record.name,
            situation=core.situation(record),
            facts=record.facts,
            seen=record.seen,
            unclaimed_since=record.unclaimed_since,
            unreadable=record.is_unreadable,
        ),
        core.knowledge(),
        trusted_prefixes=core.settings.trusted_vm_prefixes,
        moment=core.moment(),
    )


async def _remove(
    core: CacheCore, refresher: Refresher, record: KnownSnapshot, *, person: bool
) -> PurgeResult | BegunRemoval:
    outcome: Removal | SnapshotError
    try:
        removal = await remove_snapshot(core, record)
        if isinstance(removal, BegunRemoval):
            return removal
        outcome = removal
    except SnapshotError as error:
        outcome = _told(error, person=person)
    return await _result(core, refresher, record, outcome)


async def _ended(core: CacheCore, refresher: Refresher, begun: BegunRemoval, *, person: bool) -> PurgeResult:
    outcome: Removal | SnapshotError
    try:
        outcome = end_removal(core, begun)
    except SnapshotError as error:
        outcome = _told(error, person=person)
    return await _result(core, refresher, begun.record, outcome)


def _told(error: SnapshotError, *, person: bool) -> SnapshotError:
    """Return what becomes a result; a person is told of a store or a ledger that cannot be used by its error."""
    if person and isinstance(error, StoreUnavailableError | LedgerUnavailableError):
        raise error
    return error


async def _result(
    core: CacheCore, refresher: Refresher, record: KnownSnapshot, outcome: Removal | SnapshotError
) -> PurgeResult:
    """Count a removal that was tried, and return what the caller is told of it."""
    size = record.entry.allocated_bytes
    if isinstance(outcome, Removal):
        if outcome.already_gone:
            return PurgeResult(record.name, PurgeOutcome.NOTHING_TO_PURGE, message="it was gone already")
        core.counters.purged += 1
        core.counters.purged_bytes += size
        return PurgeResult(record.name, PurgeOutcome.PURGED, size)
    for kind, skipped in _SKIPPED.items():
        if isinstance(outcome, kind):
            if skipped is PurgeOutcome.SKIPPED_NEWER:
                await refresher.look_at([record.name])
            return PurgeResult(record.name, skipped, size, message=str(outcome))
    if isinstance(outcome, StoreUnavailableError | LedgerUnavailableError):
        return replace(_deferred(record.name, outcome), bytes=size)
    raise outcome


def _untouched(record: KnownSnapshot, decision: PurgeDecision) -> PurgeResult:
    size = record.entry.allocated_bytes
    return PurgeResult(record.name, decision.outcome, size, decision.deferred_reason, decision.message)


def _deferred(name: str, error: SnapshotError) -> PurgeResult:
    reason = DeferredReason.STORE_UNAVAILABLE.value
    return PurgeResult(name, PurgeOutcome.DEFERRED, deferred_reason=reason, message=str(error))
