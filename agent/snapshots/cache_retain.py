"""Keeping snapshots, ending that, and checking one before it is restored.

Why this exists: a promise counts from the moment it is durable, so the answer goes out after the commit and names
exactly what is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.snapshots.authority import Caller, admit
from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.errors import (
    InvalidFieldError,
    SnapshotError,
    SnapshotIdMismatchError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    StoreFault,
    StoreUnavailableError,
    quoted,
)
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange, LedgerState
from agent.snapshots.model import SnapshotFacts
from agent.snapshots.names import is_store_name, owned_names, require_readable_name, require_store_name
from agent.snapshots.retention import RetainRequest, RetainTarget, decide_release, decide_retain
from common.snapshot_words import Owner, RetainOutcome


@dataclass(frozen=True, slots=True)
class Retained:
    """What a retain did, and the snapshots that are kept now."""

    outcome: RetainOutcome
    snapshots: tuple[KnownSnapshot, ...] = ()


async def retain(core: CacheCore, refresher: Refresher, request: RetainRequest, caller: Caller) -> Retained:
    """Keep the snapshots of an owner's VM. Takes the lock.

    Raises InvalidNameError, InvalidFieldError, WrongClusterError, what `decide_retain` raises, StoreUnavailableError
    and LedgerUnavailableError; then nothing was recorded.
    """
    require_store_name(request.owner.vm_name, field="owner.vm_name")
    if not caller.is_person and not request.owner.pod_uid:
        raise InvalidFieldError("owner.pod_uid is required with controller_epoch", field="owner.pod_uid")
    if request.ttl_seconds is not None and request.ttl_seconds <= 0:
        raise InvalidFieldError("ttl must be positive", field="ttl")
    while True:
        await core.turns.wait_for_removals(owned_names(request.owner.vm_name))
        done = await core.turns.exclusively(lambda: _retain(core, refresher, request, caller))
        if done is not None:
            return done


async def _retain(core: CacheCore, refresher: Refresher, request: RetainRequest, caller: Caller) -> Retained | None:
    """Keep, or return None when something of it is being removed: only the end of that tells what there is to keep."""
    core.require_acceptance()
    if core.turns.is_removing(owned_names(request.owner.vm_name)):
        return None
    authority = admit(core.state.authority, caller, keeping=True)
    names = [name for name in owned_names(request.owner.vm_name) if is_store_name(name)]
    state = core.state if authority == core.state.authority else replace(core.state, authority=authority)
    done = await _retain_as_known(core, request, names, state)
    if done is not None:
        return done
    await refresher.look_at(names)
    outcome, facts = _decide(core, request, names)
    if outcome is not RetainOutcome.RETAINED:
        return Retained(outcome)
    core.crash_point("retain-before-commit")
    await core.commit(LedgerChange(state=state, facts=core.documents(facts)))
    return _kept(core, facts)


async def _retain_as_known(
    core: CacheCore, request: RetainRequest, names: list[str], state: LedgerState
) -> Retained | None:
    """Keep what memory knows, if the store still shows it so; None when the long way is needed.

    The decision is the same; it is only made before the look, so that look and commit are one step.
    """
    if core.journal.fault is not None:
        return None
    try:
        outcome, facts = _decide(core, request, names)
    except SnapshotError:
        # Refused on what memory says; only what the store says may refuse.
        return None
    if outcome is not RetainOutcome.RETAINED:
        return None
    known = core.known_entries(names)

    def work(commit: Callable[[], None]) -> bool:
        if core.store.rescan(names) != known:
            return False
        core.crash_point("retain-before-commit")
        commit()
        return True

    if not await core.commit_within(work, LedgerChange(state=state, facts=core.documents(facts))):
        return None
    return _kept(core, facts)


def _decide(
    core: CacheCore, request: RetainRequest, names: list[str]
) -> tuple[RetainOutcome, dict[str, SnapshotFacts]]:
    """Decide on what is known now; return the facts to record, by name. Raises what `decide_retain` raises."""
    core.expire()
    records = [record for name in names if (record := core.inventory.get(name)) is not None]
    moment = core.moment()
    targets = [
        RetainTarget(
            name=record.name,
            snapshot_id=record.snapshot_id,
            facts=record.facts,
            present=not record.purging and not record.is_pending,
            invalid=record.invalid,
        )
        for record in records
    ]
    decision = decide_retain(request, targets, core.journal.superseded, moment, core.settings.trusted_vm_prefixes)
    facts = {
        record.name: core.settled(record, decision.facts[record.name], moment)
        for record in records
        if record.name in decision.facts
    }
    return decision.outcome, facts


def _kept(core: CacheCore, facts: dict[str, SnapshotFacts]) -> Retained:
    """Show facts that have been committed."""
    kept = core.show_committed(facts)
    core.crash_point("retain-after-commit")
    core.counters.retained += len(kept)
    return Retained(RetainOutcome.RETAINED, tuple(kept))


async def release(core: CacheCore, owner: Owner, caller: Caller) -> tuple[KnownSnapshot, ...]:
    """End the promises to a pod, or in a person's call without UID all for a VM name; return whose ended.

    Takes the lock. Raises InvalidNameError, InvalidFieldError, WrongClusterError, StaleControllerEpochError,
    StoreUnavailableError, LedgerUnavailableError; then nothing has ended.
    """
    if not owner.pod_uid:
        if not caller.is_person:
            raise InvalidFieldError("owner.pod_uid is required with controller_epoch", field="owner.pod_uid")
        require_store_name(owner.vm_name, field="owner.vm_name")
    elif owner.vm_name:
        require_store_name(owner.vm_name, field="owner.vm_name")
    return await core.turns.exclusively(lambda: _release(core, owner, caller))


async def _release(core: CacheCore, owner: Owner, caller: Caller) -> tuple[KnownSnapshot, ...]:
    core.require_acceptance()
    authority = admit(core.state.authority, caller)
    await core.in_store(core.store.check)
    core.expire()
    moment = core.moment()
    facts = {}
    for record in _candidates_for_release(core, owner):
        released = decide_release(record.facts, pod_uid=owner.pod_uid)
        if released is not record.facts:
            facts[record.name] = core.settled(record, released, moment)
    if not facts and authority == core.state.authority:
        return ()
    core.crash_point("release-before-commit")
    ended = await core.commit_facts(facts, LedgerChange(state=replace(core.state, authority=authority)))
    core.crash_point("release-after-commit")
    return tuple(ended)


def _candidates_for_release(core: CacheCore, owner: Owner) -> list[KnownSnapshot]:
    named = [record for name in owned_names(owner.vm_name) if (record := core.inventory.get(name)) is not None]
    if not owner.pod_uid or any(kept.owner.pod_uid == owner.pod_uid for one in named for kept in one.facts.retentions):
        return named
    return [record for record in core.inventory.all() if record.facts.retentions]


async def verify(core: CacheCore, refresher: Refresher, name: str, expected_snapshot_id: str) -> KnownSnapshot:
    """Read a snapshot again and return it if it is whole and the expected one. Takes the lock.

    Whoever calls this is about to restore the copy, so it counts as a use. Raises InvalidNameError,
    SnapshotNotFoundError, SnapshotIdMismatchError, SnapshotInvalidError, StoreUnavailableError.
    """
    require_readable_name(name)
    return await core.turns.exclusively(lambda: _verify(core, refresher, name, expected_snapshot_id))


async def _verify(core: CacheCore, refresher: Refresher, name: str, expected: str) -> KnownSnapshot:
    await core.in_store(core.store.verify, name)
    await refresher.look_at([name])
    record = core.inventory.get(name)
    if record is None or record.is_pending or record.purging:
        raise SnapshotNotFoundError(f"there is no snapshot {quoted(name)} in {core.store.location}")
    problems = "; ".join(record.entry.problems)
    if record.is_unreadable:
        raise StoreUnavailableError(
            f"snapshot {quoted(name)} cannot be read: {problems}", fault=StoreFault.INPUT_OUTPUT_ERROR
        )
    if record.invalid:
        raise SnapshotInvalidError(f"snapshot {quoted(name)} is damaged: {problems}; pull it from the registry")
    if expected and record.snapshot_id != expected:
        raise SnapshotIdMismatchError(
            f"snapshot {quoted(name)} has id {quoted(record.snapshot_id)}, expected {quoted(expected)};"
            " it is a stale copy: pull the expected one from the registry"
        )
    if record.vm_name:
        core.note_restore(record)
        used = replace(record.facts, last_used_at=core.moment().now)
        core.observe(record, used)
    return record
