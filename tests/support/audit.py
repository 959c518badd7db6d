"""Reads the API server's audit log: who wrote what, in which order, with which answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class AuditLog:
    """The audit log of one control plane, which grows while tests run.

    `mark` remembers the end; `writes` returns what was written after it. The server logs before it answers, so a
    write whose answer somebody has seen is in the log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> int:
        """Return the present end of the log, to be given to `writes`."""
        return self._path.stat().st_size if self._path.exists() else 0

    def writes(
        self,
        since: int = 0,
        *,
        user: str | None = None,
        verb: str | None = None,
        resource: str | None = None,
        name: str | None = None,
    ) -> list[Write]:
        """Return the writes after the mark `since` in order, narrowed by whichever of the fields are given."""
        wanted = {"user": user, "verb": verb, "resource": resource, "name": name}
        return [
            write
            for write in self._read(since)
            if all(value is None or getattr(write, key) == value for key, value in wanted.items())
        ]

    def _read(self, since: int) -> Iterator[Write]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(since)
            for line in file:
                # The server may be in the middle of a line.
                if line.endswith(b"\n"):
                    event = json.loads(line)
                    if event["stage"] == "ResponseComplete":
                        yield _write(event)


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
