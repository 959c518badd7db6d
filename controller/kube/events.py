"""Kubernetes Events that people see in `kubectl describe`, sent so that no loop of ours can flood the API.

The same statement about the same object is one Event with a count. It is sent at once when it is new; repetitions are
gathered and sent as a new count at most every five minutes. Nothing waits for an Event: they are sent one by one, at
most a hundred a second, and when too many wait, the newest are dropped and counted.
"""

import asyncio
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from common.logging import fields
from controller.kube.errors import KubeError, NotFound
from controller.kube.retry import Retry

_LOG = logging.getLogger(__name__)

_REPEAT_SECONDS = 300.0
_FORGET_SECONDS = 3600.0
_LONGEST_NOTE_BYTES = 1000  # the API takes 1,024
_MOST_WAITING = 2000
_BETWEEN_SECONDS = 0.01
_MOST_KNOWN = 4096

EventType = Literal["Normal", "Warning"]


class EventClient(Protocol):
    """What the recorder needs of an API client."""

    async def create(self, path: str, body: object, *, retry: Retry = ..., lean: bool = ...) -> bytes:
        """POST an object."""
        ...

    async def merge_patch(self, path: str, body: object, *, retry: Retry = ...) -> bytes:
        """Merge-patch an object."""
        ...


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object an Event is about; cluster-wide objects have no namespace."""

    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class _Statement:
    regarding: Regarding
    type: EventType
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Record:
    """One Event in the API: its name once created, how often it was stated, and how often the API knows of."""

    name: str
    count: int
    first_at: datetime
    last_at: datetime
    touched: float
    sent_count: int = 0
    sent_at: float = float("-inf")


class EventRecorder:
    """Takes statements at any time from the event loop; `run` sends them."""

    def __init__(
        self,
        client: EventClient,
        *,
        controller: str = "cocoon-node-controller",
        clock: Callable[[], float] = time.monotonic,
        count: Callable[[str], None] | None = None,
    ) -> None:
        """`clock` gives monotonic seconds; `count` hears `sent`, `failed` or `dropped` for each Event."""
        self._client = client
        self._controller = controller
        self._instance = f"{controller}-{os.uname().nodename}"[:128]
        self._clock = clock
        self._count_outcome = count
        self._records: OrderedDict[_Statement, _Record] = OrderedDict()
        self._due: OrderedDict[_Statement, None] = OrderedDict()
        self._wakeup = asyncio.Event()

    def emit(self, regarding: Regarding, event_type: EventType, reason: str, note: str, *, action: str = "") -> None:
        """State something about an object; `reason` is one CamelCase word, `action` what was being done."""
        statement = _Statement(regarding, event_type, reason, action or reason, _cut(note))
        now, wall = self._clock(), datetime.now(UTC)
        record = self._records.get(statement)
        if record is None or now - record.touched > _FORGET_SECONDS:
            record = self._records[statement] = _Record(_event_name(regarding), 0, wall, wall, now)
        record.count += 1
        record.last_at, record.touched = wall, now
        self._records.move_to_end(statement)
        if now - record.sent_at < _REPEAT_SECONDS or statement in self._due:
            return
        if len(self._due) >= _MOST_WAITING:
            self._count("dropped")
            return
        self._due[statement] = None
        self._wakeup.set()

    async def run(self) -> None:
        """Send what was stated, until cancelled."""
        while True:
            self._wakeup.clear()
            while self._due:
                statement, _ = self._due.popitem(last=False)
                await self._send(statement)
                await asyncio.sleep(_BETWEEN_SECONDS)
            self._forget()
            await self._wakeup.wait()

    async def _send(self, statement: _Statement) -> None:
        record = self._records.get(statement)
        if record is None:
            return
        record.sent_at = self._clock()
        count = record.count
        try:
            await self._post_or_patch(statement, record, count)
        except KubeError as exc:
            self._count("failed")
            _LOG.warning("event %s was not sent: %s", statement.reason, exc, extra=fields(reason=exc.reason))
            return
        record.sent_count = count
        self._count("sent")

    async def _post_or_patch(self, statement: _Statement, record: _Record, count: int) -> None:
        collection = f"/apis/events.k8s.io/v1/namespaces/{_namespace(statement.regarding)}/events"
        retry = Retry(attempts=2, ambiguous=False)
        if record.sent_count:
            series = {"count": count, "lastObservedTime": _micro_time(record.last_at)}
            try:
                await self._client.merge_patch(f"{collection}/{record.name}", {"series": series}, retry=retry)
            except NotFound:
                # Events expire after an hour by default; then the statement is a new one.
                record.name = _event_name(statement.regarding)
            else:
                return
        await self._client.create(collection, self._body(statement, record, count), retry=retry, lean=True)

    def _body(self, statement: _Statement, record: _Record, count: int) -> dict[str, Any]:
        regarding = statement.regarding
        reference = {
            "apiVersion": regarding.api_version,
            "kind": regarding.kind,
            "name": regarding.name,
            # `kubectl describe node` looks for Events under the Node's name as UID, as kubelets send them.
            "uid": regarding.name if regarding.kind == "Node" else regarding.uid,
            "namespace": regarding.namespace,
        }
        body: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": record.name, "namespace": _namespace(regarding)},
            "eventTime": _micro_time(record.first_at),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": statement.action,
            "reason": statement.reason,
            "type": statement.type,
            "note": statement.note,
            "regarding": {key: value for key, value in reference.items() if value},
        }
        if count > 1:
            body["series"] = {"count": count, "lastObservedTime": _micro_time(record.last_at)}
        return body

    def _count(self, outcome: str) -> None:
        if self._count_outcome is not None:
            self._count_outcome(outcome)

    def _forget(self) -> None:
        now = self._clock()
        while self._records:
            statement, record = next(iter(self._records.items()))
            if now - record.touched <= _FORGET_SECONDS and len(self._records) <= _MOST_KNOWN:
                return
            del self._records[statement]


def _cut(note: str) -> str:
    return note.encode()[:_LONGEST_NOTE_BYTES].decode(errors="ignore")


def _namespace(regarding: Regarding) -> str:
    return regarding.namespace or "default"


def _event_name(regarding: Regarding) -> str:
    return f"{regarding.name[:200]}.{uuid.uuid4().hex[:16]}"


def _micro_time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
