"""The snapshot cache as the host's resources see it: what is added back to storage, and when storage is not believed.

Why this exists: kept snapshots lower what the scheduler may sell, overlays of known VMs must not be taken off twice,
and a disk that is not there must not become a number. Everything is answered from memory.
"""

from collections.abc import Iterator

from agent.resources.overlays import KnownVm
from agent.resources.report import Condition
from agent.snapshots.cache import SnapshotCache
from agent.snapshots.cache_candidates import reclaimable_bytes
from agent.snapshots.errors import StoreFault
from agent.snapshots.upkeep import Upkeep

_OTHER_DISK = frozenset(
    {StoreFault.MISSING, StoreFault.NOT_A_DIRECTORY, StoreFault.MARKER_MISSING, StoreFault.MARKER_DIFFERENT}
)


class CacheView:
    """Implements `agent.resources.snapshot_view.SnapshotView`."""

    def __init__(self, cache: SnapshotCache, upkeep: Upkeep) -> None:
        self._cache = cache
        self._upkeep = upkeep

    def known_vms(self) -> Iterator[KnownVm]:
        """Return the VMs of the owners of the last sync, also of one before this start; nothing before the first."""
        for owner in self._cache.core.owners:
            if owner.vm_id:
                yield KnownVm(owner.vm_id, owner.ephemeral_storage_request_bytes)

    def reclaimable_bytes(self) -> int:
        """Return what collecting the retained snapshots with a verified backup would give back, in bytes."""
        return reclaimable_bytes(self._cache.core)

    def storage_problem(self) -> str | None:
        """Return why the storage must not be believed now, None when it may.

        Only a disk that is not the right one has another size; other faults of the store leave the numbers true.
        """
        core = self._cache.core
        if core.store_fault is None and not core.is_identified:
            return "the snapshot store has not been opened yet"
        fault = core.store_fault
        return str(fault) if fault is not None and fault.fault in _OTHER_DISK else None

    def conditions(self) -> Iterator[Condition]:
        """Return what the Node should say about the cache."""
        core = self._cache.core
        pressure = self._upkeep.disk_pressure
        yield Condition(
            type="DiskPressure",
            status=bool(pressure),
            reason="AboveHighWatermark" if pressure else "BelowHighWatermark",
            message=f"the snapshot store's file system is too full: {pressure}" if pressure else "",
        )
        fault = core.store_fault or core.journal.fault or core.refusal
        reason, message = ("Ready", "") if self._cache.has_begun else ("Starting", "the store is being read")
        yield Condition(
            type="CocoonSnapshotCacheReady",
            status=fault is None and self._cache.has_begun,
            reason=reason if fault is None else _camel(fault.reason),
            message=message if fault is None else str(fault),
        )


def _camel(reason: str) -> str:
    return "".join(word.capitalize() for word in reason.split("_"))
