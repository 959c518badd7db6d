"""Purging the snapshots of a VM name: look, decide each by the rules, remove what the decision allows.

Why this exists: this is the call that destroys. It never trusts memory alone: the names are read again first, and
whatever cannot be read now is deferred, not guessed.
"""

from dataclasses import dataclass, replace

from agent.snapshots.authority import Caller, admit
from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.cache_removal import remove_snapshot, require_ledger
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
from agent.snapshots.model import DeferredReason, Owner, PurgeOutcome, PurgeReason, SnapshotState, SyncPoint
from agent.snapshots.names import owned_names, owning_vm, require_purge_name
from agent.snapshots.purging import PurgeDecision, PurgeOrder, PurgeTarget, decide_purge


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
    """Purge, and return one result a snapshot, sorted by name. Takes the lock.

    Raises InvalidNameError, InvalidFieldError, WrongClusterError, StaleControllerEpochError, and for a person
    StoreUnavailableError and LedgerUnavailableError, where a controller is told DEFERRED.
    """
    _validate(request, caller)
    results = await core.exclusively(lambda: _purge(core, refresher, request, caller))
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


async def _purge(
    core: CacheCore, refresher: Refresher, request: PurgeRequest, caller: Caller
) -> tuple[PurgeResult, ...]:
    core.require_acceptance()
    authority = admit(core.state.authority, caller)
    names = [name for name in owned_names(request.owner.vm_name) if owning_vm(name)]
    try:
        await _look(core, refresher, names, caller)
    except (StoreUnavailableError, LedgerUnavailableError) as error:
        if caller.is_person:
            raise
        return (_deferred(request.owner.vm_name, error),)
    state = replace(core.state, authority=authority)
    if not request.dry_run and authority != core.state.authority:
        await core.commit(LedgerChange(state=state))
    point = None if caller.epoch is None else SyncPoint(caller.epoch, request.sync_revision)
    order = PurgeOrder(request.owner, point, request.force)
    results = []
    for record in _snapshots_of(core, names):
        decision = _decide(core, order, record)
        if decision.removes and not request.dry_run:
            results.append(await _remove(core, refresher, record, person=caller.is_person))
        else:
            size = record.entry.allocated_bytes
            results.append(PurgeResult(record.name, decision.outcome, size, decision.deferred_reason, decision.message))
    return tuple(results) or (
        PurgeResult(request.owner.vm_name, PurgeOutcome.NOTHING_TO_PURGE, message="the VM has no snapshot here"),
    )


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


async def _remove(core: CacheCore, refresher: Refresher, record: KnownSnapshot, *, person: bool) -> PurgeResult:
    size = record.entry.allocated_bytes
    try:
        removal = await remove_snapshot(core, record)
    except SnapshotInUseError as error:
        return PurgeResult(record.name, PurgeOutcome.SKIPPED_IN_USE, size, message=str(error))
    except SnapshotPendingError as error:
        return PurgeResult(record.name, PurgeOutcome.SKIPPED_PENDING, size, message=str(error))
    except SnapshotChangedError as error:
        await refresher.look_at([record.name])
        return PurgeResult(record.name, PurgeOutcome.SKIPPED_NEWER, size, message=str(error))
    except (StoreUnavailableError, LedgerUnavailableError) as error:
        if person:
            raise
        return replace(_deferred(record.name, error), bytes=size)
    core.counters.purged += 1
    core.counters.purged_bytes += size
    outcome = PurgeOutcome.NOTHING_TO_PURGE if removal.already_gone else PurgeOutcome.PURGED
    return PurgeResult(record.name, outcome, size)


def _deferred(name: str, error: SnapshotError) -> PurgeResult:
    reason = DeferredReason.STORE_UNAVAILABLE.value
    return PurgeResult(name, PurgeOutcome.DEFERRED, deferred_reason=reason, message=str(error))
