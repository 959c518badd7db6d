"""Applying the full set of owners: the moment at which the agent learns who claims what.

Why this exists: everything that removes rests on this call. It begins with a fresh look at the store, makes promises
for owners that left with the keep flag in the same commit that takes the new set, and notes which snapshots were there
and unclaimed at this point, because no purge may ever reach further.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from agent.snapshots.authority import Authority, Caller, admit, order_sync
from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.errors import InvalidFieldError, LedgerUnavailableError, StaleOwnerSyncError, quoted
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.ledger_rows import LedgerChange
from agent.snapshots.model import Moment, SnapshotFacts, SnapshotState, SyncPoint
from agent.snapshots.ownership import OwnerSet
from agent.snapshots.retention import decide_sync, restamp, settle
from common.snapshot_words import Owner

_UNCLAIMED_STATES = (SnapshotState.RETAINED, SnapshotState.UNCLAIMED, SnapshotState.INVALID)


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """The full set of owners; `controller_time` is Unix seconds, None when the controller did not tell."""

    owners: tuple[Owner, ...]
    revision: int
    controller_time: float | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The place of the sync, and every snapshot of a VM name that nobody claims, by state and name."""

    point: SyncPoint
    unclaimed: tuple[KnownSnapshot, ...]


async def sync_owners(core: CacheCore, refresher: Refresher, request: SyncRequest, caller: Caller) -> SyncReply:
    """Apply a sync. Takes the lock.

    Raises InvalidFieldError, WrongClusterError, StaleControllerEpochError, StaleOwnerSyncError, StoreUnavailableError
    and LedgerUnavailableError; then the owners are those of before.
    """
    owners = _owner_set(request.owners)
    return await core.turns.exclusively(lambda: _sync(core, refresher, request, owners, caller))


def _owner_set(owners: Sequence[Owner]) -> OwnerSet:
    """Return the owners by UID; a set in which they cannot be told apart is no full set."""
    seen: set[str] = set()
    for index, owner in enumerate(owners):
        field = f"owners[{index}].pod_uid"
        if not owner.pod_uid:
            raise InvalidFieldError(f"{field} is empty; owners are told apart by it", field=field)
        if owner.pod_uid in seen:
            raise InvalidFieldError(f"{field} {quoted(owner.pod_uid)} is there twice", field=field)
        seen.add(owner.pod_uid)
    return OwnerSet(owners)


async def _sync(
    core: CacheCore, refresher: Refresher, request: SyncRequest, owners: OwnerSet, caller: Caller
) -> SyncReply:
    core.require_acceptance()
    authority = admit(core.state.authority, caller)
    point = order_sync(authority, caller, request.revision)
    if point == authority.last_sync:
        return await _repeat(core, owners, point)
    await refresher.look_for_changes(ask_engine=True)
    await refresher.look_at(_damaged(core, owners))
    was_in_doubt = core.moment().clock_in_doubt
    before = watch = core.watch
    wall, boot = core.clock.wall(), core.clock.boot()
    if request.controller_time is not None:
        watch = watch.compare(wall, boot, request.controller_time)
    moment = watch.moment(wall)
    facts, superseded = _decide_all(core, owners, moment, confirmed=was_in_doubt and not moment.clock_in_doubt)
    core.watch = watch
    try:
        await _commit(core, owners, replace(authority, last_sync=point), facts, superseded)
    except LedgerUnavailableError:
        # The times taken in doubt have not started anew, so the doubt has not ended either.
        core.watch = watch if watch.in_doubt else before
        raise
    core.applied, core.applied_boot = point, core.clock.boot()
    _mark_seen(core, facts.keys(), point)
    core.expire()
    return SyncReply(point, _unclaimed(core))


async def _repeat(core: CacheCore, owners: OwnerSet, point: SyncPoint) -> SyncReply:
    """Answer a repeated sync as it was answered before.

    It is not applied again: it is as old as at its first arrival, and would mark as seen what has appeared since.
    """
    if owners != core.owners:
        raise StaleOwnerSyncError(
            f"sync_revision {point.revision} has been applied with other owners; a changed set needs a higher one"
        )
    await core.in_store(core.store.check)
    return SyncReply(point, _unclaimed(core))


def _damaged(core: CacheCore, owners: OwnerSet) -> list[str]:
    """Return what is known as damaged and about to lose an owner, perhaps one that has it kept.

    It may have been completed in place since, which the look for changes does not show.
    """
    names = core.owners.differing_names(owners)
    return [name for name in names if (record := core.inventory.get(name)) is not None and record.invalid]


def _decide_all(
    core: CacheCore, owners: OwnerSet, moment: Moment, *, confirmed: bool
) -> tuple[dict[str, SnapshotFacts], dict[str, None]]:
    """Return the facts that change with these owners, by name, and the pods that are superseded.

    Everything is looked at when the sync ends a time of doubt: about the clock (`confirmed`) or about the ledger.
    """
    names = core.owners.differing_names(owners)
    if confirmed or core.state.everything_in_use:
        names.update(record.name for record in core.inventory.all())
    facts: dict[str, SnapshotFacts] = {}
    superseded: dict[str, None] = {}
    for name in names:
        record = core.inventory.get(name)
        if record is None or record.is_pending:
            continue
        decision = decide_sync(
            restamp(record.facts, moment) if confirmed else record.facts,
            core.owners.claimants(name),
            owners.claimants(name),
            keepable=not record.invalid and not record.purging,
            trusted_prefixes=core.settings.trusted_vm_prefixes,
            moment=moment,
        )
        situation = record.situation(
            claimed=bool(owners.claimants(name)),
            engine_in_use=record.snapshot_id in core.engine_in_use,
            everything_in_use=False,
        )
        facts[name] = settle(decision.facts, situation, moment)
        superseded.update(dict.fromkeys(decision.superseded_uids))
    superseded.update(dict.fromkeys(_replaced_without_snapshot(core.owners, owners)))
    return facts, superseded


def _replaced_without_snapshot(before: OwnerSet, after: OwnerSet) -> list[str]:
    """Return UIDs whose place another pod of their name has taken, whether or not there is a snapshot yet.

    A pod of that name with another VM leaves the place, and the promises that go with it, to the first.
    """
    places = {(owner.namespace, owner.pod_name, owner.vm_name) for owner in after}
    return [
        owner.pod_uid
        for owner in before
        if owner.pod_uid not in after.by_uid and (owner.namespace, owner.pod_name, owner.vm_name) in places
    ]


async def _commit(
    core: CacheCore,
    owners: OwnerSet,
    authority: Authority,
    facts: dict[str, SnapshotFacts],
    superseded: dict[str, None],
) -> None:
    state = replace(core.state, authority=authority, synced_at=core.clock.wall(), everything_in_use=False)
    documents = core.documents(facts)
    core.crash_point("sync-before-commit")
    await core.commit(
        LedgerChange(state=state, owners=tuple(owners), facts=documents, superseded_uids=tuple(superseded))
    )
    core.crash_point("sync-after-commit")
    core.owners = owners
    core.journal.note_superseded(superseded)
    core.journal.note_named(owners.by_uid)
    core.show_committed(facts)


def _mark_seen(core: CacheCore, changed_names: Iterable[str], point: SyncPoint) -> None:
    for name in core.inventory.unseen.keys() | set(changed_names):
        record = core.inventory.get(name)
        if record is None:
            continue
        record.seen = record.seen or point
        claimed = bool(core.owners.claimants(record.entry.target_name))
        record.unclaimed_since = None if claimed else record.unclaimed_since or point
    core.inventory.unseen.clear()


def _unclaimed(core: CacheCore) -> tuple[KnownSnapshot, ...]:
    used_by_engine = (
        record
        for record in core.inventory.in_states(SnapshotState.IN_USE)
        if record.vm_name and not core.owners.claimants(record.name)
    )
    return (*core.inventory.in_states(*_UNCLAIMED_STATES), *used_by_engine)
