"""Snapshots, owners and results as messages of the API, and requests back from them.

Why this exists: only this module and the service know the protobuf messages, so the use cases can be read and tested
without them. Values of the cache's enums are those of the API.
"""

from collections.abc import Collection

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from agent.snapshots.authority import Caller
from agent.snapshots.cache import CacheUsage
from agent.snapshots.cache_collect import CollectedItem, CollectionSummary
from agent.snapshots.cache_purge import PurgeResult
from agent.snapshots.collection import Policy, Watermarks
from agent.snapshots.errors import InvalidFieldError
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.model import Retention, SnapshotState, strongest
from agent.snapshots.ownership import OwnerSet
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.owner_message import owner_message
from common.quantity import MAX_INT64, format_bytes

_MAX_INT32 = 2**31 - 1
# 9999-12-31T23:59:59Z, the last time a Timestamp can carry.
_MAX_TIME = 253402300799.0


def snapshot_message(record: KnownSnapshot, owners: OwnerSet, *, brief: bool = False) -> pb.Snapshot:
    """Return a snapshot; a brief one leaves out what only people read, for replies that name very many."""
    entry = record.entry
    message = pb.Snapshot(
        name=record.name,
        snapshot_id=_text(record.snapshot_id),
        vm_name=record.vm_name,
        state=pb.SnapshotState.ValueType(record.state.value),
        allocated_bytes=entry.allocated_bytes,
        apparent_bytes=min(entry.apparent_bytes, MAX_INT64),
    )
    claimants = owners.claimants(entry.target_name)
    owner = claimants[0] if claimants else record.facts.owner
    if owner is not None:
        message.owner.CopyFrom(owner_message(owner))
    kept = strongest(record.facts.retentions)
    if kept is not None:
        message.retention.CopyFrom(_retention(kept))
    _set_time(message.create_time, entry.created_at)
    _set_time(message.last_use_time, record.last_use_at)
    if not brief:
        _add_details(message, record)
    return message


def _add_details(message: pb.Snapshot, record: KnownSnapshot) -> None:
    entry = record.entry
    message.hypervisor = _text(entry.hypervisor)
    message.cpu_count = max(0, min(entry.cpu_count, _MAX_INT32))
    message.memory_bytes = max(0, min(entry.memory_bytes, MAX_INT64))
    message.image = _text(entry.image)
    message.problems.extend(_text(problem) for problem in entry.problems)
    message.allocated_quantity = format_bytes(message.allocated_bytes)
    message.apparent_quantity = format_bytes(message.apparent_bytes)
    message.memory_quantity = format_bytes(message.memory_bytes)


ChangingRequest = (
    pb.SyncOwnersRequest
    | pb.RetainSnapshotsRequest
    | pb.ReleaseRetentionRequest
    | pb.PurgeSnapshotsRequest
    | pb.CollectGarbageRequest
)


def caller_of(request: ChangingRequest) -> Caller:
    """Return who sent a changing request."""
    epoch = request.controller_epoch if request.HasField("controller_epoch") else None
    return Caller(epoch, request.cluster_id)


def states_of(numbers: Collection[int]) -> frozenset[SnapshotState] | None:
    """Return the states to be listed, None for all; a state that only newer callers know is one nobody here has."""
    asked = [number for number in numbers if number]
    if not asked:
        return None
    known = {state.value for state in SnapshotState}
    return frozenset(SnapshotState(number) for number in asked if number in known)


def seconds_of(message: Message, duration: Duration, field: str) -> float | None:
    """Return a duration field in seconds, None when it is unset. Raises InvalidFieldError unless it is positive."""
    if not message.HasField(field.rsplit(".", 1)[-1]):
        return None
    seconds = duration.seconds + duration.nanos / 1e9
    if seconds <= 0:
        raise InvalidFieldError(f"{field} is {seconds:g} s, must be positive", field=field)
    return seconds


def policy_of(request: pb.CollectGarbageRequest) -> Policy | None:
    """Return the policy for one run, None for the configured one. Raises InvalidFieldError."""
    if not request.HasField("policy"):
        return None
    policy = request.policy
    if policy.max_bytes < 0:
        raise InvalidFieldError(
            f"policy.max_bytes is {policy.max_bytes}, must not be negative", field="policy.max_bytes"
        )
    keep = policy.keep_at_most if policy.HasField("keep_at_most") else None
    if keep is not None and keep < 0:
        raise InvalidFieldError(f"policy.keep_at_most is {keep}, must not be negative", field="policy.keep_at_most")
    return Policy(
        max_age_seconds=seconds_of(policy, policy.max_age, "policy.max_age"),
        max_bytes=policy.max_bytes or None,
        keep_at_most=keep,
    )


def purge_result_message(result: PurgeResult) -> pb.PurgeResult:
    """Return what a purge did with one snapshot."""
    return pb.PurgeResult(
        name=result.name,
        outcome=pb.PurgeOutcome.ValueType(result.outcome.value),
        bytes=result.bytes,
        quantity=format_bytes(result.bytes),
        deferred_reason=result.deferred_reason,
        message=_text(result.message),
    )


def item_message(item: CollectedItem) -> pb.CollectedItem:
    """Return one item of a collection."""
    message = pb.CollectedItem(
        name=item.name,
        bytes=item.bytes,
        reason=pb.CollectionReason.ValueType(item.reason.value),
        outcome=pb.CollectionOutcome.ValueType(item.outcome.value),
        quantity=format_bytes(item.bytes),
        message=_text(item.message),
    )
    _set_time(message.last_use_time, item.last_use_at)
    return message


def summary_message(summary: CollectionSummary) -> pb.CollectionSummary:
    """Return how a collection ended."""
    message = pb.CollectionSummary(
        trigger=pb.CollectionTrigger.ValueType(summary.trigger.value),
        removed_count=summary.removed_count,
        removed_bytes=summary.removed_bytes,
        removed_quantity=format_bytes(summary.removed_bytes),
        skipped_count=summary.skipped_count,
        deferred_reason=summary.deferred_reason,
        dry_run=summary.dry_run,
    )
    _set_time(message.start_time, summary.started_at)
    _set_time(message.end_time, summary.ended_at)
    return message


def usage_message(usage: CacheUsage, watermarks: Watermarks) -> pb.GetCacheUsageResponse:
    """Return the cache as a whole."""
    message = pb.GetCacheUsageResponse(
        filesystem_total_bytes=usage.disk.total_bytes,
        filesystem_available_bytes=usage.disk.available_bytes,
        filesystem_total_quantity=format_bytes(usage.disk.total_bytes),
        filesystem_available_quantity=format_bytes(usage.disk.available_bytes),
        high_watermark_percent=watermarks.high_percent,
        low_watermark_percent=watermarks.low_percent,
        trash_bytes=usage.disk.trash_bytes,
        trash_quantity=format_bytes(usage.disk.trash_bytes),
        controller_epoch=usage.epoch or 0,
        sync_revision=usage.applied.revision if usage.applied else 0,
        clock_in_doubt=usage.clock_in_doubt,
    )
    for state, total in usage.totals.items():
        message.states.add(
            state=pb.SnapshotState.ValueType(state.value),
            count=total.count,
            allocated_bytes=total.allocated_bytes,
            allocated_quantity=format_bytes(total.allocated_bytes),
        )
    if usage.last_collection is not None:
        message.last_collection.CopyFrom(summary_message(usage.last_collection))
    if usage.synced_at is not None:
        _set_time(message.sync_time, usage.synced_at)
    return message


def _retention(kept: Retention) -> pb.Retention:
    message = pb.Retention(
        owner=owner_message(kept.owner),
        reason=pb.RetainReason.ValueType(kept.reason.value),
        backup_verified=kept.backup_verified,
    )
    _set_time(message.create_time, kept.created_at)
    if kept.expires_at is not None:
        _set_time(message.expire_time, kept.expires_at)
    return message


def _set_time(field: Timestamp, at: float) -> None:
    """Set a time; 0 is unknown and stays unset. File times can be anything, a Timestamp cannot."""
    if at > 0:
        field.FromNanoseconds(int(min(at, _MAX_TIME) * 1e9))


def _text(value: str) -> str:
    """Return text that can be sent: what stands in somebody's metadata may not be."""
    return value.encode("utf-8", "replace").decode("utf-8")
