"""Calls to the agents' `SnapshotCache`: the only place where the leader's words become messages.

Why this exists: every changing call has to carry the leader's epoch and the cluster's id, needs a deadline, and must
not be sent by a process that no longer leads. Asking for the right is done here, right before sending, so that no
caller can forget it. What comes back is ours: values of `controller.deletion.model`, errors with a stable reason.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships without types

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.owner_message import owner_message
from common.snapshot_words import Owner, PurgeOutcome, PurgeReason, ReleaseReason, RetainOutcome, RetainReason
from controller.agents.cache_messages import found_snapshot, located_snapshot
from controller.deletion.model import FoundSnapshot, LocatedSnapshot, PurgeResult
from controller.kube.leadership import Leadership

_SERVICE = "/cocoonstack.node.v1.SnapshotCache/"
_DETAILS = "grpc-status-details-bin"
_DOMAIN = "node.cocoonstack.io"
_MAX_SHOWN = 300
_UNKNOWN_OUTCOME = "UNKNOWN_OUTCOME"
_LABELS = frozenset(
    {
        *("INVALID_NAME", "INVALID_FIELD", "SNAPSHOT_NOT_FOUND", "SNAPSHOT_IN_USE", "SNAPSHOT_ID_MISMATCH"),
        *("SNAPSHOT_INVALID", "STALE_CONTROLLER_EPOCH", "STALE_OWNER_SYNC", "WRONG_CLUSTER", "WRONG_NODE"),
        *("STORE_UNAVAILABLE", "LEDGER_UNAVAILABLE", "PROBE_FAILED", "NOT_AUTHORIZED", "TOO_MANY_REQUESTS"),
        *("NotConnected", "Unavailable", "Timeout", "Cancelled", "InvalidAnswer"),
        *(code.name for code in grpc.StatusCode),
    }
)

R = TypeVar("R", bound=Message)


class AgentCallError(Exception):
    """A call that did not do what was asked; `reason` is stable: the agent's own, or the gRPC status in CamelCase."""

    def __init__(self, node: str, reason: str, message: str) -> None:
        """Keep node and reason beside the text."""
        super().__init__(f"agent of {node}: {message[:_MAX_SHOWN] or reason}")
        self.node = node
        self.reason = reason

    @property
    def label(self) -> str:
        """The reason as a metric may carry it: an agent that makes reasons up makes no time series of them."""
        return self.reason if self.reason in _LABELS else "OTHER"


class AgentUnreachableError(AgentCallError):
    """No connection, no answer in time, or the agent is being stopped; what was asked may or may not have been done."""


class StaleEpochError(AgentCallError):
    """The agent knows a higher epoch than ours."""

    def __init__(self, node: str, message: str, highest_epoch: int) -> None:
        """`highest_epoch` is the highest one the agent knows, -1 when it did not say."""
        super().__init__(node, "STALE_CONTROLLER_EPOCH", message)
        self.highest_epoch = highest_epoch


class StaleSyncError(AgentCallError):
    """The agent has applied a later sync of our epoch; `epoch` is that epoch."""

    epoch = -1


class WrongClusterError(AgentCallError):
    """The host belongs to another cluster until an operator accepts ours."""


class AgentChannels(Protocol):
    """Where the open connection to a node's agent is found."""

    def channel(self, node: str) -> grpc.aio.Channel | None:
        """Return the connection to the agent that may speak for this node; None when there is none."""
        ...

    def nodes(self) -> Iterable[str]:
        """Return the nodes whose agents are known, connected or not; do not keep it across an await."""
        ...

    def is_known(self, node: str) -> bool:
        """Whether the node has an agent that we know, connected or not."""
        ...


@dataclass(frozen=True, slots=True)
class CallSeconds:
    """Deadlines. A purge waits for an engine that removes; everything else is a matter of one transaction."""

    sync: float = 15.0
    change: float = 10.0
    purge: float = 60.0


class CacheClient:
    """Speaks to agents in the name of the leader.

    Every method raises AgentCallError or one of its kinds, and NotLeadingError without having sent anything.
    """

    def __init__(
        self,
        channels: AgentChannels,
        leadership: Leadership,
        cluster_id: str = "",
        seconds: CallSeconds | None = None,
    ) -> None:
        """`cluster_id` is the UID of the cluster's kube-system namespace; it must be set before the first call."""
        self._channels = channels
        self._leadership = leadership
        self.cluster_id = cluster_id
        self._seconds = seconds or CallSeconds()

    async def sync_owners(self, node: str, owners: Iterable[Owner], revision: int) -> tuple[FoundSnapshot, ...]:
        """Tell the full set of owners; return the snapshots of VM names that nobody claims."""
        now = Timestamp()
        now.FromNanoseconds(time.time_ns())
        request = pb.SyncOwnersRequest(
            owners=[owner_message(owner) for owner in owners],
            sync_revision=revision,
            controller_time=now,
            cluster_id=self.cluster_id,
        )
        answer = await self._call(node, "SyncOwners", request, pb.SyncOwnersResponse, self._seconds.sync)
        if answer.truncated:
            return await self.list_unclaimed(node)
        return tuple(found_snapshot(each) for each in answer.unclaimed_snapshots)

    async def list_vm(self, node: str, vm_name: str) -> tuple[LocatedSnapshot, ...]:
        """Return a VM's snapshots on one node, by reading only."""
        request = pb.ListSnapshotsRequest(page_size=1000, vm_name=vm_name)
        answer = await self._send(node, "ListSnapshots", request, pb.ListSnapshotsResponse, self._seconds.change)
        return tuple(located_snapshot(each) for each in answer.snapshots)

    async def list_unclaimed(self, node: str) -> tuple[FoundSnapshot, ...]:
        """Return what the reply to a sync would name, by reading only; nobody need lead for that."""
        states = [pb.SNAPSHOT_STATE_RETAINED, pb.SNAPSHOT_STATE_UNCLAIMED, pb.SNAPSHOT_STATE_INVALID]
        found: list[FoundSnapshot] = []
        request = pb.ListSnapshotsRequest(page_size=1000, states=states)
        while True:
            answer = await self._send(node, "ListSnapshots", request, pb.ListSnapshotsResponse, self._seconds.change)
            found += [found_snapshot(each) for each in answer.snapshots if each.vm_name]
            if not answer.next_page_token:
                return tuple(found)
            request.page_token = answer.next_page_token

    async def retain(
        self,
        node: str,
        owner: Owner,
        reason: RetainReason,
        ttl_seconds: float | None,
        *,
        backup_verified: bool = False,
    ) -> tuple[RetainOutcome, int]:
        """Keep an owner's snapshots; return what was done and how many are kept.

        `backup_verified`: a copy was seen in the registry.
        """
        request = pb.RetainSnapshotsRequest(
            owner=owner_message(owner),
            reason=reason.value,  # type: ignore[arg-type] # same values
            backup_verified=backup_verified,
            cluster_id=self.cluster_id,
        )
        if ttl_seconds is not None:
            request.ttl.CopyFrom(Duration(seconds=int(ttl_seconds)))
        answer = await self._call(node, "RetainSnapshots", request, pb.RetainSnapshotsResponse, self._seconds.change)
        try:
            return RetainOutcome(answer.outcome), len(answer.snapshots)
        except ValueError:
            raise AgentCallError(node, "InvalidAnswer", f"retain outcome {answer.outcome} is not known") from None

    async def release(self, node: str, owner: Owner, reason: ReleaseReason) -> int:
        """End an owner's retentions; return how many ended."""
        request = pb.ReleaseRetentionRequest(
            owner=owner_message(owner),
            reason=reason.value,  # type: ignore[arg-type] # same values
            cluster_id=self.cluster_id,
        )
        answer = await self._call(node, "ReleaseRetention", request, pb.ReleaseRetentionResponse, self._seconds.change)
        return len(answer.snapshots)

    async def purge(self, node: str, owner: Owner, reason: PurgeReason, revision: int) -> tuple[PurgeResult, ...]:
        """Remove an owner's snapshots as far as the agent's rules allow; `revision` is that of our sync."""
        request = pb.PurgeSnapshotsRequest(
            owner=owner_message(owner),
            reason=reason.value,  # type: ignore[arg-type] # same values
            sync_revision=revision,
            cluster_id=self.cluster_id,
        )
        answer = await self._call(node, "PurgeSnapshots", request, pb.PurgeSnapshotsResponse, self._seconds.purge)
        return tuple(purge_result(each) for each in answer.results)

    async def _call(self, node: str, name: str, request: Message, answer_type: type[R], timeout_seconds: float) -> R:
        """Send a changing call with the leader's epoch."""
        # Nothing is awaited between the right to change something and sending it.
        epoch = self._leadership.require()
        request.controller_epoch = epoch  # type: ignore[attr-defined] # all changing ones have it
        try:
            return await self._send(node, name, request, answer_type, timeout_seconds)
        except StaleSyncError as error:
            error.epoch = epoch
            raise

    async def _send(self, node: str, name: str, request: Message, answer_type: type[R], timeout_seconds: float) -> R:
        channel = self._channels.channel(node)
        if channel is None:
            raise AgentUnreachableError(node, "NotConnected", "there is no connection to the agent")
        method: grpc.aio.UnaryUnaryMultiCallable[Message, R] = channel.unary_unary(
            _SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer_type.FromString,
        )
        try:
            return await method(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise _typed(node, error) from None
        except grpc.aio.UsageError as error:
            # The stream's supervisor has closed the channel in this very moment.
            raise AgentUnreachableError(node, "NotConnected", str(error)) from None


_UNREACHABLE = {
    grpc.StatusCode.UNAVAILABLE: "Unavailable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "Timeout",
    grpc.StatusCode.CANCELLED: "Cancelled",
}


def _typed(node: str, error: grpc.aio.AioRpcError) -> AgentCallError:
    info = _error_info(error)
    message = error.details() or ""
    reason = info.reason if info is not None else ""
    if reason == "STALE_CONTROLLER_EPOCH" and info is not None:
        text = info.metadata.get("highest_epoch", "")
        return StaleEpochError(node, message, int(text) if text.isascii() and text.isdigit() else -1)
    if reason == "STALE_OWNER_SYNC":
        return StaleSyncError(node, reason, message)
    if reason == "WRONG_CLUSTER":
        return WrongClusterError(node, reason, message)
    if not reason and error.code() in _UNREACHABLE:
        return AgentUnreachableError(node, _UNREACHABLE[error.code()], message)
    return AgentCallError(node, reason or error.code().name, message)


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS or not isinstance(value, bytes):
            continue
        try:
            details: Sequence[Message] = status_pb2.Status.FromString(value).details
        except DecodeError:
            return None
        for detail in details:
            info = error_details_pb2.ErrorInfo()
            if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == _DOMAIN:  # type: ignore[attr-defined] # an Any
                return info
    return None


def purge_result(result: pb.PurgeResult) -> PurgeResult:
    """Return what an agent did with one snapshot."""
    try:
        outcome = PurgeOutcome(result.outcome)
    except ValueError:
        # A newer agent's word: whatever it did, that the snapshot is gone is nothing we may count on.
        return PurgeResult(result.name, PurgeOutcome.DEFERRED, 0, _UNKNOWN_OUTCOME, f"its outcome is {result.outcome}")
    return PurgeResult(result.name, outcome, result.bytes, result.deferred_reason, result.message)
