"""What a collection finds: how full the disk is, what could go, and whether enough is known to let anything go.

Why this exists: the plan, the last look before each removal and what the scheduler is told count alike.
"""

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_settings import CollectionMode
from agent.snapshots.collection import Candidate, CollectionRank, DiskUse, is_collectable, rank_of
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.model import SnapshotState
from agent.snapshots.ownership import is_foreign


async def disk_use(core: CacheCore) -> DiskUse:
    """Return how full the store's file system is. Raises StoreUnavailableError."""
    usage = await core.in_store(core.store.usage)
    return DiskUse(
        total_bytes=usage.total_bytes,
        available_bytes=usage.available_bytes,
        trash_bytes=core.store.trash_bytes(),
        total_inodes=usage.total_inodes,
        available_inodes=usage.available_inodes,
    )


def reclaimable_bytes(core: CacheCore) -> int:
    """Return what a collection gives back by removing what is retained with a verified backup, in bytes.

    Only what it would really take: nothing foreign or unreadable, nothing kept after a disruption, and nothing at all
    while collections do not remove.
    """
    if core.settings.collection is not CollectionMode.ON:
        return 0
    candidates = (candidate_of(core, record) for record in core.inventory.in_states(SnapshotState.RETAINED))
    return sum(
        one.exclusive_bytes
        for one in candidates
        if rank_of(one) is CollectionRank.BACKED_UP and is_collectable(one, core.moment())
    )


def picture_is_complete(core: CacheCore) -> bool:
    """Return whether enough is known of owners to collect anything."""
    if core.state.everything_in_use:
        return False
    if core.knowledge().fresh:
        return True
    return core.settings.standalone and core.state.authority.epoch is None


def candidate_of(core: CacheCore, record: KnownSnapshot) -> Candidate:
    """Return a snapshot as a plan sees it now."""
    owner = record.facts.owner
    return Candidate(
        name=record.name,
        state=record.state,
        exclusive_bytes=record.entry.exclusive_bytes,
        last_use_at=record.last_use_at,
        unclaimed_at=record.facts.unclaimed_at,
        retentions=record.facts.retentions,
        shared_files=record.entry.linked_files,
        foreign=owner is not None and is_foreign(owner, core.settings.trusted_vm_prefixes),
        unreadable=record.is_unreadable,
        restoring=core.is_restoring(record),
    )
