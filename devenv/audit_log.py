"""Reads an API server's audit log while it is being written.

Why this exists: whoever looks may find the server in the middle of a line, at the log's end and at a mark alike.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def audit_mark(log: Path) -> int:
    """Return the present end of the log in bytes, to be given to `audit_events`."""
    return log.stat().st_size if log.exists() else 0


def audit_events(log: Path, since: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the events whose lines began after the mark `since`, and are whole by now."""
    if not log.exists():
        return
    with log.open("rb") as lines:
        if since:
            # A mark may lie within a line; that line had begun before it.
            lines.seek(since - 1)
            lines.readline()
        for line in lines:
            # The rest of a line, once it is there, would look like a line of its own.
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)
