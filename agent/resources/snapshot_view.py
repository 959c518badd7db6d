"""What the host's resources need to know of the snapshot cache, and nothing more of it.

Why this exists: overlays are added back for VMs the cache's owner sync names, and a store that is not the right disk
must not change the storage numbers. The cache implements this.
"""

from collections.abc import Iterable
from typing import Protocol

from agent.resources.overlays import KnownVm
from agent.resources.report import Condition


class SnapshotView(Protocol):
    """Asked on the event loop right before each reading of storage; answers at once, from memory."""

    def known_vms(self) -> Iterable[KnownVm]:
        """Return the VMs of the owners of the last sync; nothing before the first one."""
        ...

    def reclaimable_bytes(self) -> int:
        """Return what removing the retained snapshots would give back, in bytes."""
        ...

    def storage_problem(self) -> str | None:
        """Return why the storage must not be believed now (the store's disk is not there), None when it may."""
        ...

    def conditions(self) -> Iterable[Condition]:
        """Return conditions for the Node, such as DiskPressure."""
        ...
