"""Whose word counts: which controller, of which cluster, and which order of syncs.

Why this exists: after a network split an old leader may still be calling, a restored lease starts to count again, and
a second cluster's controller may dial the wrong host. Keeping is taken from any leader of the right cluster;
everything else only from the newest known.
"""

from dataclasses import dataclass, replace

from agent.snapshots.errors import (
    InvalidFieldError,
    StaleControllerEpochError,
    StaleOwnerSyncError,
    WrongClusterError,
    quoted,
)
from agent.snapshots.model import PERSON_EPOCH, SyncPoint


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the leader's epoch and its cluster, or a person without an epoch."""

    epoch: int | None = None
    cluster_id: str = ""

    @property
    def is_person(self) -> bool:
        """Whether no controller speaks."""
        return self.epoch is None


PERSON = Caller()


@dataclass(frozen=True, slots=True)
class Authority:
    """What the ledger knows: the cluster (empty: none yet), the highest epoch (None: none yet), the last sync."""

    cluster_id: str = ""
    epoch: int | None = None
    last_sync: SyncPoint | None = None


def admit(known: Authority, caller: Caller, *, keeping: bool = False) -> Authority:
    """Return what is known once this caller is admitted.

    `keeping` is True for a call that only keeps. Raises WrongClusterError, StaleControllerEpochError, and
    InvalidFieldError for a negative epoch or one of no cluster. Before any cluster is known, a controller that does not
    tell its own may have something kept; it is believed nothing for that.
    """
    if caller.epoch is not None and caller.epoch < 0:
        raise InvalidFieldError(f"controller_epoch is {caller.epoch}, must not be negative", field="controller_epoch")
    if known.cluster_id and caller.cluster_id != known.cluster_id and (caller.cluster_id or not caller.is_person):
        raise WrongClusterError(
            f"cluster_id is {quoted(caller.cluster_id)}, this host belongs to cluster {quoted(known.cluster_id)};"
            " if it was given to another, run on it: cocoon-node-agent accept cluster"
        )
    if caller.epoch is None:
        return known
    if not caller.cluster_id:
        if keeping:
            return known
        raise InvalidFieldError("cluster_id is required with controller_epoch", field="cluster_id")
    highest = known.epoch if known.epoch is not None else caller.epoch
    if caller.epoch < highest and not keeping:
        raise StaleControllerEpochError(
            f"controller_epoch is {caller.epoch}, the highest known here is {highest}", highest_epoch=highest
        )
    if known.cluster_id and known.epoch == highest >= caller.epoch:
        return known
    return replace(known, cluster_id=known.cluster_id or caller.cluster_id, epoch=max(caller.epoch, highest))


def order_sync(known: Authority, caller: Caller, revision: int) -> SyncPoint:
    """Return the place of an admitted caller's sync. The one last applied may be repeated; its place is the same.

    Raises StaleOwnerSyncError for a lower revision of the same epoch, StaleControllerEpochError for a person's sync
    once a controller is known.
    """
    if revision <= 0:
        raise InvalidFieldError(f"sync_revision is {revision}, must be positive", field="sync_revision")
    if caller.epoch is None and known.epoch is not None:
        raise StaleControllerEpochError(
            f"a controller of epoch {known.epoch} names the owners here; a sync without an epoch is not taken",
            highest_epoch=known.epoch,
        )
    point = SyncPoint(PERSON_EPOCH if caller.epoch is None else caller.epoch, revision)
    if known.last_sync is not None and point < known.last_sync:
        raise StaleOwnerSyncError(
            f"sync_revision is {revision}, revision {known.last_sync.revision} of the same epoch has been applied"
        )
    return point
