"""Messages of `SnapshotCache` into our own values and back; nothing else in the controller sees them."""

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.enum_words import enum_word
from common.owner_message import owner_of
from common.snapshot_words import RetainReason
from controller.deletion.model import FoundSnapshot, LocatedSnapshot


def found_snapshot(snapshot: pb.Snapshot) -> FoundSnapshot:
    """Return a snapshot as decisions ask about it; whom it is kept for goes before whom it was last seen with."""
    owner = snapshot.owner if snapshot.HasField("owner") else None
    retained, expires_at, backup_verified = None, None, False
    if snapshot.HasField("retention"):
        kept = snapshot.retention
        retained = RetainReason(kept.reason)
        expires_at = kept.expire_time.ToNanoseconds() / 1e9 if kept.HasField("expire_time") else None
        owner = kept.owner if kept.HasField("owner") else owner
        backup_verified = kept.backup_verified
    return FoundSnapshot(
        name=snapshot.name,
        vm_name=snapshot.vm_name,
        owner=None if owner is None else owner_of(owner),
        retained=retained,
        expires_at=expires_at,
        allocated_bytes=snapshot.allocated_bytes,
        invalid=snapshot.state == pb.SNAPSHOT_STATE_INVALID,
        backup_verified=backup_verified,
    )


def located_snapshot(snapshot: pb.Snapshot) -> LocatedSnapshot:
    """Return a snapshot with its state, for people."""
    return LocatedSnapshot(
        found=found_snapshot(snapshot),
        snapshot_id=snapshot.snapshot_id,
        state=enum_word(pb.SnapshotState.DESCRIPTOR, snapshot.state),
        problems=tuple(snapshot.problems),
    )
