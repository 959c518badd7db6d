"""The gRPC service SnapshotCache: requests in, use cases, messages out, errors with stable reasons.

Why this exists: everything about the wire is here, everything about snapshots elsewhere.
"""

from __future__ import annotations  # grpc's classes take type arguments in stubs only

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import grpc

from agent.rpc.errors import ApiError
from agent.snapshots.cache import SnapshotCache
from agent.snapshots.cache_collect import MAX_WAITING, CollectedItem
from agent.snapshots.cache_purge import PurgeRequest
from agent.snapshots.cache_sync import SyncRequest
from agent.snapshots.encoded_pages import EncodedPages
from agent.snapshots.errors import InvalidFieldError, InvalidNameError, SnapshotError, TooManyRequestsError
from agent.snapshots.feed import Watcher
from agent.snapshots.inventory import KnownSnapshot
from agent.snapshots.messages import (
    caller_of,
    item_message,
    policy_of,
    purge_result_message,
    seconds_of,
    snapshot_message,
    states_of,
    summary_message,
    usage_message,
)
from agent.snapshots.page_token import name_after, page_token
from agent.snapshots.read_ahead import read_ahead
from agent.snapshots.retention import RetainRequest
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.owner_message import owner_of
from common.snapshot_words import PurgeReason, RetainReason

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["SnapshotCache"].full_name
HEARTBEAT_SECONDS = 10.0
# A message may have 4 MiB; the rest is room for what is not counted here.
MAX_REPLY_BYTES = 3 << 20
_FRAMING_BYTES = 8
_WATCH_CHUNK = 200
_R = TypeVar("_R")
_Q = TypeVar("_Q")

_CODES = {
    "INVALID_NAME": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "SNAPSHOT_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "STORE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "TOO_MANY_REQUESTS": grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def api_error(error: SnapshotError) -> ApiError:
    """Return what a caller is told of an error of the cache; the rest of its reasons are failed preconditions."""
    violations = [(error.field, str(error))] if isinstance(error, InvalidNameError | InvalidFieldError) else []
    code = _CODES.get(error.reason, grpc.StatusCode.FAILED_PRECONDITION)
    return ApiError(code, error.reason, str(error), metadata=error.metadata, violations=violations)


class SnapshotCacheService:
    """Answers the calls of SnapshotCache from an open cache."""

    def __init__(self, cache: SnapshotCache, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> None:
        self._cache = cache
        self._heartbeat_seconds = heartbeat_seconds
        self._closed = False
        self._collections = 0
        self._pages = EncodedPages()

    def handlers(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """Return the service's methods."""
        unary: dict[str, tuple[Callable[[Any], Awaitable[Any]], Any]] = {
            "ListSnapshots": (self._list, pb.ListSnapshotsRequest),
            "GetSnapshot": (self._get, pb.GetSnapshotRequest),
            "GetCacheUsage": (self._usage, pb.GetCacheUsageRequest),
            "SyncOwners": (self._sync, pb.SyncOwnersRequest),
            "RetainSnapshots": (self._retain, pb.RetainSnapshotsRequest),
            "ReleaseRetention": (self._release, pb.ReleaseRetentionRequest),
            "PurgeSnapshots": (self._purge, pb.PurgeSnapshotsRequest),
            "VerifySnapshot": (self._verify, pb.VerifySnapshotRequest),
        }
        streams: dict[str, tuple[Callable[[Any], AsyncGenerator[Any, None]], Any]] = {
            "WatchSnapshots": (self._watch, pb.WatchSnapshotsRequest),
            "CollectGarbage": (self._collect, pb.CollectGarbageRequest),
        }
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.unary_unary_rpc_method_handler(_answering(method), request.FromString, _serialized)
            for name, (method, request) in unary.items()
        }
        handlers.update(
            (name, grpc.unary_stream_rpc_method_handler(_streaming(method), request.FromString, _serialized))
            for name, (method, request) in streams.items()
        )
        return handlers

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        self._cache.core.feed.wake_all()

    async def _list(self, request: pb.ListSnapshotsRequest) -> bytes:
        core, asked = self._cache.core, request.SerializeToString(deterministic=True)
        await self._cache.require_available_now()
        kept = self._pages.get(asked, core.feed.revision, core.owners)
        if kept is not None:
            return kept
        filters = (request.states, request.vm_name)
        page = await self._cache.page(
            after=name_after(request.page_token, *filters),
            size=request.page_size,
            states=states_of(request.states),
            vm_name=request.vm_name,
        )
        shown = page.snapshots
        reply = self._page_reply(shown, page.next_after, page.total, filters)
        while len(reply) > MAX_REPLY_BYTES and len(shown) > 1:
            shown = shown[: len(shown) // 2]
            reply = self._page_reply(shown, shown[-1].name, page.total, filters)
        # Nothing was awaited since the page was made, so it is of this revision.
        self._pages.keep(asked, reply, core.feed.revision, core.owners)
        return reply

    def _page_reply(
        self, shown: Sequence[KnownSnapshot], next_after: str, total: int, filters: tuple[Iterable[int] | str, ...]
    ) -> bytes:
        return pb.ListSnapshotsResponse(
            snapshots=[self._snapshot(record) for record in shown],
            next_page_token=page_token(next_after, *filters),
            total_size=total,
        ).SerializeToString()

    async def _get(self, request: pb.GetSnapshotRequest) -> pb.GetSnapshotResponse:
        return pb.GetSnapshotResponse(snapshot=self._snapshot(await self._cache.get(request.name)))

    async def _usage(self, _request: pb.GetCacheUsageRequest) -> pb.GetCacheUsageResponse:
        return usage_message(await self._cache.usage(), self._cache.settings.watermarks)

    async def _sync(self, request: pb.SyncOwnersRequest) -> pb.SyncOwnersResponse:
        told = request.controller_time.ToNanoseconds() / 1e9 if request.HasField("controller_time") else None
        owners = tuple(owner_of(owner) for owner in request.owners)
        reply = await self._cache.sync_owners(SyncRequest(owners, request.sync_revision, told), caller_of(request))
        answer = pb.SyncOwnersResponse(sync_revision=reply.point.revision)
        size = 0
        for number, record in enumerate(reply.unclaimed, start=1):
            message = self._snapshot(record, brief=True)
            size += message.ByteSize() + _FRAMING_BYTES
            if size > MAX_REPLY_BYTES:
                answer.truncated = True
                break
            answer.unclaimed_snapshots.append(message)
            if number % _WATCH_CHUNK == 0:
                # Thousands are named; other calls must not wait for all of them.
                await asyncio.sleep(0)
        return answer

    async def _retain(self, request: pb.RetainSnapshotsRequest) -> pb.RetainSnapshotsResponse:
        wanted = RetainRequest(
            owner=owner_of(request.owner),
            reason=RetainReason(request.reason),
            ttl_seconds=seconds_of(request, request.ttl, "ttl"),
            expected_snapshot_id=request.expected_snapshot_id,
            backup_verified=request.backup_verified,
        )
        done = await self._cache.retain(wanted, caller_of(request))
        return pb.RetainSnapshotsResponse(
            snapshots=[self._snapshot(record) for record in done.snapshots],
            outcome=pb.RetainOutcome.ValueType(done.outcome.value),
        )

    async def _release(self, request: pb.ReleaseRetentionRequest) -> pb.ReleaseRetentionResponse:
        ended = await self._cache.release(owner_of(request.owner), caller_of(request))
        return pb.ReleaseRetentionResponse(snapshots=[self._snapshot(record) for record in ended])

    async def _purge(self, request: pb.PurgeSnapshotsRequest) -> pb.PurgeSnapshotsResponse:
        wanted = PurgeRequest(
            owner=owner_of(request.owner),
            reason=PurgeReason(request.reason),
            sync_revision=request.sync_revision,
            force=request.force,
            dry_run=request.dry_run,
        )
        results = await self._cache.purge(wanted, caller_of(request))
        return pb.PurgeSnapshotsResponse(results=[purge_result_message(result) for result in results])

    async def _verify(self, request: pb.VerifySnapshotRequest) -> pb.VerifySnapshotResponse:
        record = await self._cache.verify(request.name, request.expected_snapshot_id)
        return pb.VerifySnapshotResponse(snapshot=self._snapshot(record))

    async def _collect(self, request: pb.CollectGarbageRequest) -> AsyncGenerator[pb.CollectGarbageResponse, None]:
        # Whose answer is not read yet counts as well: it has a change's place, and others need those.
        if self._collections > MAX_WAITING:
            raise TooManyRequestsError(f"{self._collections} collections run, wait or are being read; try again later")
        self._collections += 1
        try:
            steps = self._cache.collect(caller_of(request), policy=policy_of(request), dry_run=request.dry_run)
            async with contextlib.aclosing(read_ahead(steps)) as done:
                async for step in done:
                    if isinstance(step, CollectedItem):
                        yield pb.CollectGarbageResponse(item=item_message(step))
                    else:
                        yield pb.CollectGarbageResponse(summary=summary_message(step))
        finally:
            self._collections -= 1

    async def _watch(self, _request: pb.WatchSnapshotsRequest) -> AsyncGenerator[pb.WatchSnapshotsResponse, None]:
        async with self._cache.watching() as watcher:
            after, more = "", True
            while more:
                records = self._cache.core.inventory.page(after, _WATCH_CHUNK)
                watcher.has_told(record.name for record in records)
                for record in records:
                    yield self._event(pb.SNAPSHOT_EVENT_TYPE_UPSERTED, watcher.revision, record)
                more = len(records) == _WATCH_CHUNK
                after = records[-1].name if records else ""
            yield self._event(pb.SNAPSHOT_EVENT_TYPE_SYNCED, watcher.revision)
            while not self._closed:
                self._cache.require_available()
                async for event in self._changes(watcher):
                    yield event

    async def _changes(self, watcher: Watcher) -> AsyncGenerator[pb.WatchSnapshotsResponse, None]:
        """Wait for changes and return some of them; a heartbeat when there is none for a while."""
        if not await watcher.wait(self._heartbeat_seconds):
            yield self._event(pb.SNAPSHOT_EVENT_TYPE_HEARTBEAT, self._cache.core.feed.revision)
        for name, revision in watcher.take(_WATCH_CHUNK):
            record = self._cache.core.inventory.get(name)
            if record is not None:
                yield self._event(pb.SNAPSHOT_EVENT_TYPE_UPSERTED, revision, record)
            else:
                event = self._event(pb.SNAPSHOT_EVENT_TYPE_REMOVED, revision)
                event.snapshot.name = name
                yield event

    def _event(
        self, kind: pb.SnapshotEventType.ValueType, revision: int, record: KnownSnapshot | None = None
    ) -> pb.WatchSnapshotsResponse:
        event = pb.WatchSnapshotsResponse(type=kind, revision=revision)
        event.event_time.FromNanoseconds(time.time_ns())
        if record is not None:
            event.snapshot.CopyFrom(self._snapshot(record))
        return event

    def _snapshot(self, record: KnownSnapshot, *, brief: bool = False) -> pb.Snapshot:
        return snapshot_message(record, self._cache.core.owners, brief=brief)


def _serialized(message: Any) -> bytes:  # noqa: ANN401 # any message of the API, or one that is encoded already
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _answering(method: Callable[[_Q], Awaitable[_R]]) -> Callable[[_Q, object], Awaitable[_R]]:
    @functools.wraps(method)
    async def answer(request: _Q, _context: object) -> _R:
        try:
            return await method(request)
        except SnapshotError as error:
            raise api_error(error) from error

    return answer


def _streaming(method: Callable[[_Q], AsyncGenerator[_R, None]]) -> Callable[[_Q, object], AsyncGenerator[_R, None]]:
    @functools.wraps(method)
    async def stream(request: _Q, _context: object) -> AsyncGenerator[_R, None]:
        try:
            async with contextlib.aclosing(method(request)) as messages:
                async for message in messages:
                    yield message
        except SnapshotError as error:
            raise api_error(error) from error

    return stream
