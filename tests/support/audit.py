"""Reads the API server's audit log: who wrote what, in which order, with which answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from devenv.audit_log import audit_events, audit_mark
from tests.support.waiting import wait_for

# Which part of a Node's life a write belongs to is told by resource and subresource; a lease renewal is no Node write.
LEASES = "leases"


@dataclass(frozen=True, slots=True)
class Write:
    """One answered writing request: bodies are the decoded JSON objects, None where there was none."""

    user: str
    verb: str
    resource: str
    subresource: str
    namespace: str
    name: str
    status: int
    query: str
    request: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Read:
    """One answered uncached read of the controller; `at` is when it arrived, in Unix seconds."""

    resource: str
    namespace: str
    name: str
    status: int
    at: float


class AuditLog:
    """The audit log of one control plane, which grows while tests run.

    `mark` remembers the end; `writes` returns what arrived at the server after it. A request is logged when it arrives,
    before it has any effect, and again when it is answered: a write whose effect somebody has seen is therefore found,
    and one that had arrived before the mark is never counted, however late its answer is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> int:
        """Return the present end of the log, to be given to `writes`."""
        return audit_mark(self._path)

    def writes(
        self,
        since: int = 0,
        *,
        user: str | None = None,
        verb: str | None = None,
        resource: str | None = None,
        name: str | None = None,
    ) -> list[Write]:
        """Return the writes that arrived after the mark `since`, in order, narrowed by whichever fields are given."""
        wanted = {"user": user, "verb": verb, "resource": resource, "name": name}
        return [
            write
            for write in self._answered(since)
            if all(value is None or getattr(write, key) == value for key, value in wanted.items())
        ]

    def reads(self, since: int = 0) -> list[Read]:
        """Return the controller's reads of single pods and CocoonSets that are answered and logged by now."""
        return [
            Read(
                resource=event["objectRef"]["resource"],
                namespace=event["objectRef"].get("namespace", ""),
                name=event["objectRef"].get("name", ""),
                status=event.get("responseStatus", {}).get("code", 0),
                at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
            )
            for event in audit_events(self._path, since)
            if event["verb"] == "get" and event["stage"] == "ResponseComplete"
        ]

    def _answered(self, since: int) -> list[Write]:
        """The writes that have arrived by now, once each of them is answered."""
        arrived = [event["auditID"] for event in audit_events(self._path, since) if event["stage"] == "RequestReceived"]

        def answers() -> dict[str, dict[str, Any]] | None:
            ended = {
                event["auditID"]: event
                for event in audit_events(self._path, since)
                if event["stage"] in ("ResponseComplete", "Panic")
            }
            return ended if ended.keys() >= set(arrived) else None

        if not arrived:
            return []
        ended = wait_for(answers, 30, what="every write in the audit log being answered")
        assert ended is not None
        return [_write(ended[audit_id]) for audit_id in arrived]


def _write(event: dict[str, Any]) -> Write:
    reference = event.get("objectRef", {})
    answer = event.get("responseObject") or {}
    # A POST names its object only in the body.
    name = reference.get("name") or answer.get("metadata", {}).get("name", "")
    return Write(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=reference.get("resource", ""),
        subresource=reference.get("subresource", ""),
        namespace=reference.get("namespace", ""),
        name=name,
        status=event.get("responseStatus", {}).get("code", 0),
        query=event["requestURI"].partition("?")[2],
        request=event.get("requestObject"),
        response=event.get("responseObject"),
    )
