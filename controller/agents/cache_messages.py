"""Messages of `SnapshotCache` into our own values and back; nothing else in the controller sees them."""

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from controller.deletion.model import FoundSnapshot, LocatedSnapshot, Owner, RetainReason

_STATE = "SNAPSHOT_STATE_"


def owner_message(owner: Owner) -> pb.Owner:
    """Return an owner as agents are told."""
    return pb.Owner(
        pod_uid=owner.pod_uid,
        namespace=owner.namespace,
        pod_name=owner.pod_name,
        vm_name=owner.vm_name,
        managed=owner.managed,
        set_name=owner.set_name,
        set_uid=owner.set_uid,
        vm_id=owner.vm_id,
        ephemeral_storage_request_bytes=owner.ephemeral_storage_request_bytes,
        keep_on_delete=owner.keep_on_delete,
    )


def owner_from(owner: pb.Owner) -> Owner:
    """Return an owner as an agent recorded it."""
    return Owner(
        pod_uid=owner.pod_uid,
        namespace=owner.namespace,
        pod_name=owner.pod_name,
        vm_name=owner.vm_name,
        managed=owner.managed,
        set_name=owner.set_name,
        set_uid=owner.set_uid,
        vm_id=owner.vm_id,
        ephemeral_storage_request_bytes=owner.ephemeral_storage_request_bytes,
        keep_on_delete=owner.keep_on_delete,
    )


def found_snapshot(snapshot: pb.Snapshot) -> FoundSnapshot:
    """Return a snapshot as decisions ask about it; whom it is kept for goes before whom it was last seen with."""
    owner = owner_from(snapshot.owner) if snapshot.HasField("owner") else None
    retained, expires_at = None, None
    if snapshot.HasField("retention"):
        kept = snapshot.retention
        # A reason we do not know is somebody's wish all the same; treating it as a person's keeps it.
        known = kept.reason in {each.value for each in RetainReason}
        retained = RetainReason(kept.reason) if known else RetainReason.REQUESTED
        expires_at = kept.expire_time.ToNanoseconds() / 1e9 if kept.HasField("expire_time") else None
        owner = owner_from(kept.owner) if kept.HasField("owner") else owner
    return FoundSnapshot(
        name=snapshot.name,
        vm_name=snapshot.vm_name,
        owner=owner,
        retained=retained,
        expires_at=expires_at,
        allocated_bytes=snapshot.allocated_bytes,
        invalid=snapshot.state == pb.SNAPSHOT_STATE_INVALID,
    )


def located_snapshot(snapshot: pb.Snapshot) -> LocatedSnapshot:
    """Return a snapshot with its state, for people."""
    return LocatedSnapshot(
        found=found_snapshot(snapshot),
        snapshot_id=snapshot.snapshot_id,
        state=pb.SnapshotState.Name(snapshot.state).removeprefix(_STATE),
        problems=tuple(snapshot.problems),
    )
