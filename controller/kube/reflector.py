"""A local copy of one kind of object, kept by list and watch.

Why this exists: the official informer is thread-based, swallows errors, hangs on half-open connections and builds
models of objects of which we need ten fields. Here bytes go straight into the caller's small `msgspec` struct.

Two invariants the rest of the controller stands on: a failed, cut or half list never replaces the copy, and a change is
never missed: every gap in the watch ends in a list that is compared with the copy.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic

import msgspec

from common.logging import fields
from controller.kube.errors import Gone, KubeError, RetryLater, Status
from controller.kube.listing import BrokenError, ExpiredError, PagedList
from controller.kube.objects import (
    Bookmark,
    Change,
    ChangeKind,
    RawEvent,
    T,
    WatchTransport,
    event_type,
    object_key,
)

log = logging.getLogger(__name__)

_SERVER_TIMEOUT_SECONDS = (300, 600)
# A watch that ended sooner than this, without any news, has not proved that the server is well.
_STEADY_SECONDS = 5.0
# An object is at most 1.5 MiB in etcd; a "line" far beyond that is no watch event.
_MAX_LINE_BYTES = 16 * 1024 * 1024
_MAX_SHOWN = 300
_OTHER_EVENTS = frozenset({"BOOKMARK", "ERROR"})
# Names of their own: looking a member up in its enumeration costs as much as looking up the object.
_ADDED: Final = ChangeKind.ADDED
_MODIFIED: Final = ChangeKind.MODIFIED
_DELETED: Final = ChangeKind.DELETED


@dataclass(frozen=True, slots=True)
class ReflectorLimits:
    """Sizes and times of a reflector; the defaults are the design's, tests shorten them."""

    page_size: int = 500
    inactivity_seconds: float = 70.0
    first_backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0


class Reflector(Generic[T]):
    """Keeps `items` equal to what the API server has under one path.

    `items` maps `namespace/name` (or `name`) to the caller's struct. `on_change` is called on the event loop, in order,
    after `items` was changed; it must not block and must not raise. `problem` is empty while list and watch work;
    `lists` counts the whole lists taken over; `last_contact_at` is monotonic time in seconds.
    """

    def __init__(
        self,
        transport: WatchTransport,
        path: str,
        item_type: type[T],
        on_change: Callable[[Change[T]], None],
        *,
        query: Mapping[str, str] | None = None,
        limits: ReflectorLimits | None = None,
    ) -> None:
        """Watch the collection at `path` (`/api/v1/nodes`); `query` may hold `labelSelector` and `fieldSelector`."""
        self.path = path
        self.items: dict[str, T] = {}
        self.problem = ""
        self.lists = 0
        self.last_contact_at = 0.0
        self._transport = transport
        self._on_change = on_change
        self._query = dict(query or {})
        self._limits = limits or ReflectorLimits()
        self._pages = PagedList(transport, path, item_type, self._query, self._limits.page_size)
        self._synced = asyncio.Event()
        self._version = ""
        self._failures = 0
        self._decode_item = msgspec.json.Decoder(item_type).decode
        self._decode_event = msgspec.json.Decoder(event_type(item_type)).decode
        self._decode_raw_event = msgspec.json.Decoder(RawEvent).decode

    @property
    def has_synced(self) -> bool:
        """Whether one whole list has been taken over since the start."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return once `has_synced`."""
        await self._synced.wait()

    async def run(self) -> None:
        """List, watch, and list again when the server forgot our version; until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._relist()
                await self._watch()
            except ExpiredError as expired:
                log.info("listing again", extra=fields(path=self.path, cause=str(expired)))
                self._version = ""
                await self._pause(0.0)
            except (KubeError, BrokenError, msgspec.DecodeError) as failure:
                self._note(failure)
                await self._pause(failure.retry_after_seconds if isinstance(failure, RetryLater) else 0.0)

    async def _relist(self) -> None:
        """Take over one whole list. Nothing changes unless every page arrived."""
        found, version = await self._pages.read_all()
        for key in [key for key in self.items if key not in found]:
            self._remove_unseen(key)
        for key, item in found.items():
            self._put(key, item, item.metadata, seen=False)
        self._version = version
        self.lists += 1
        self._heard()
        self._synced.set()

    async def _watch(self) -> None:
        """Follow changes from the last version until the server ends the watch."""
        version, opened_at = self._version, time.monotonic()
        query = self._query | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(random.randint(*_SERVER_TIMEOUT_SECONDS)),  # noqa: S311 - spreads load only
        }
        try:
            async with self._transport.stream_bytes(self.path, query, self._limits.inactivity_seconds) as chunks:
                self._heard()
                await self._read_events(chunks)
        except Gone as gone:
            raise ExpiredError("the server refused to watch from our version") from gone
        finally:
            steady = self._version != version or time.monotonic() - opened_at > _STEADY_SECONDS
            if steady:
                self._failures = 0
        if not steady:
            raise BrokenError("the server ended the watch at once")

    async def _read_events(self, chunks: AsyncIterator[bytes]) -> None:
        """Take whole lines only: one cut in half by the stream's end comes again from the last version seen."""
        parts: list[bytes] = []
        size = 0
        async for chunk in chunks:
            self.last_contact_at = time.monotonic()
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                whole = b"".join((*parts, line)) if parts else line
                parts.clear()
                size = 0
                if whole:
                    self._take_event(whole)
            if rest:
                parts.append(rest)
                size += len(rest)
            if size > _MAX_LINE_BYTES:
                raise BrokenError("an event of more than 16 MiB")

    def _take_event(self, line: bytes) -> None:
        try:
            event = self._decode_event(line)
        except msgspec.DecodeError:
            self._take_other(line)
            return
        if event.type in _OTHER_EVENTS:
            self._take_other(line)
            return
        self._apply(event.type, event.object)

    def _take_other(self, line: bytes) -> None:
        """Take what is no change of an object; that is rare, and read in two steps."""
        try:
            event = self._decode_raw_event(line)
            if event.type == "BOOKMARK":
                self._version = msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
                return
            if event.type == "ERROR":
                raise _error_event(msgspec.json.decode(event.object, type=Status))
            self._decode_item(event.object)
        except msgspec.DecodeError as error:
            raise BrokenError(f"an event that cannot be read: {error}"[:_MAX_SHOWN]) from error
        raise BrokenError("an event that cannot be read")

    def _apply(self, kind: str, item: T) -> None:
        """Take one change, and the version it leads to."""
        metadata = item.metadata
        key = object_key(metadata)
        if kind in ("MODIFIED", "ADDED"):
            self._put(key, item, metadata, seen=True)
        elif kind == "DELETED":
            before = self.items.pop(key, None)
            self._on_change(Change(_DELETED, key, before, item, True))
        else:
            raise BrokenError(f"an event of unknown type {kind[:40]!r}")
        self._version = metadata.resource_version

    def _put(self, key: str, item: T, metadata: Any, *, seen: bool) -> None:  # noqa: ANN401 - as in Watched
        """Store one object and tell, unless we have it already; another UID is a deletion we did not see."""
        before = self.items.get(key)
        kind = _ADDED
        if before is not None:
            known = before.metadata
            if known.uid != metadata.uid:
                self._remove_unseen(key)
                before = None
            elif known.resource_version == metadata.resource_version:
                return
            else:
                kind = _MODIFIED
        self.items[key] = item
        self._on_change(Change(kind, key, before, item, seen))

    def _remove_unseen(self, key: str) -> None:
        before = self.items.pop(key)
        self._on_change(Change(_DELETED, key, before, before, False))

    def _heard(self) -> None:
        self.last_contact_at = time.monotonic()
        if self.problem and self.has_synced:
            log.info("list and watch work again", extra=fields(path=self.path))
        self.problem = ""

    def _note(self, failure: Exception) -> None:
        """Log a problem when it appears or changes, not at each try."""
        text = str(failure)[:_MAX_SHOWN] or type(failure).__name__
        if self.problem != text:
            log.warning("list or watch failed", extra=fields(path=self.path, error=text))
        self.problem = text

    async def _pause(self, at_least_seconds: float) -> None:
        """Wait before the next try: doubling with jitter, never less than the server asked for."""
        limits = self._limits
        ceiling = min(limits.max_backoff_seconds, limits.first_backoff_seconds * 2.0 ** min(self._failures, 20))
        self._failures += 1
        await asyncio.sleep(max(at_least_seconds, ceiling * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads load only


def _error_event(status: Status) -> Exception:
    if status.code == 410 or status.reason in ("Expired", "Gone"):
        return ExpiredError(status.message or "the version is too old")
    # What the server lost we cannot know: continuing from our version lets it say so.
    return BrokenError(f"an error event: {status.code} {status.reason} {status.message}"[:_MAX_SHOWN])
