"""One line in the log for each call: who asked, under which id, about which snapshots, and how it ended.

Why this exists: after a snapshot is gone, its owner asks who removed it and why. A line about a change is always
written; those about readings are for whoever looks for something (level debug), because a fleet reads all the time.
"""

from __future__ import annotations  # grpc's classes take type arguments in stubs only

import logging
import re
import secrets
import time
from typing import Any

from grpc.aio import ServicerContext

from agent.rpc.errors import ApiError
from agent.rpc.limits import Kind
from common.logging import bind_fields, fields

_LOG = logging.getLogger(__name__)
REQUEST_ID_KEY = "x-request-id"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_MOST_SNAPSHOTS = 20
NOT_AUTHORIZED = "NOT_AUTHORIZED"


class CallLog:
    """The line of one call: made when it begins, told more while it runs, written by `ended`.

    `request_id` is the caller's (metadata `x-request-id`: at most 64 letters, digits and `._:-`), else a new one, and
    stands on every other line that the call causes.
    """

    def __init__(self, method: str, kind: Kind, request: object, context: ServicerContext[Any, Any]) -> None:
        self._method = method.rpartition("/")[2]
        self._kind = kind
        self._peer = context.peer()
        self._about = _about(request)
        self._snapshots: list[str] = []
        self._started = time.perf_counter()
        self.request_id = _request_id(context)
        bind_fields(request_id=self.request_id)

    def note(self, answer: object) -> None:
        """Remember which snapshots an answer, or a part of one, is about."""
        for name in _snapshots(answer):
            if len(self._snapshots) < _MOST_SNAPSHOTS and name not in self._snapshots:
                self._snapshots.append(name)

    def ended(self, code: str, caller: str, error: BaseException | None = None) -> None:
        """Write the line. Snapshots are named up to twenty; a refused caller is worth a warning."""
        reason = error.reason if isinstance(error, ApiError) else ""
        level = logging.INFO if self._kind is Kind.CHANGE else logging.DEBUG
        if reason == NOT_AUTHORIZED:
            level = logging.WARNING
        if not _LOG.isEnabledFor(level):
            return
        found: dict[str, object] = {"method": self._method, "code": code}
        if reason:
            found |= {"reason": reason, "problem": str(error)}
        found |= self._about
        if self._snapshots:
            found["snapshots"] = self._snapshots
        milliseconds = round((time.perf_counter() - self._started) * 1000)
        _LOG.log(level, "call", extra=fields(**found, peer=self._peer, caller=caller, milliseconds=milliseconds))


def is_wanted(kind: Kind) -> bool:
    """Whether calls of this kind are worth following from their beginning; readings are only when somebody looks."""
    return kind is Kind.CHANGE or _LOG.isEnabledFor(logging.DEBUG)


def _request_id(context: ServicerContext[Any, Any]) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)


def _about(request: object) -> dict[str, object]:
    """Return whom a request names, in the words that all requests of this API have for it."""
    found: dict[str, object] = {}
    owner = getattr(request, "owner", None)
    for holder, attribute, name in (
        (request, "name", "snapshot"),
        (request, "vm_name", "vm"),
        (owner, "vm_name", "vm"),
        (owner, "pod_uid", "uid"),
        (request, "sync_revision", "sync_revision"),
        (request, "controller_epoch", "epoch"),
        (request, "dry_run", "dry_run"),
    ):
        value = getattr(holder, attribute, None)
        if value:
            found[name] = value
    return found


def _snapshots(answer: object) -> list[str]:
    """Return the names of snapshots that an answer says something was done to."""
    parts = [*getattr(answer, "snapshots", ()), *getattr(answer, "results", ()), getattr(answer, "item", None)]
    return [name for part in parts if (name := getattr(part, "name", ""))]
