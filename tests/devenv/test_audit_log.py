"""The audit log is read while it is written."""

import json
from pathlib import Path

from devenv.audit_log import audit_events, audit_mark


def test_half_a_line_is_none_at_the_end_nor_at_a_mark(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    assert (audit_mark(log), list(audit_events(log))) == (0, [])
    lines = [json.dumps({"n": number, "object": {"a": number}}).encode() + b"\n" for number in range(4)]
    log.write_bytes(lines[0] + lines[1][:12])
    assert [event["n"] for event in audit_events(log)] == [0]
    within = audit_mark(log)
    log.write_bytes(lines[0] + lines[1])
    after = audit_mark(log)
    log.write_bytes(b"".join(lines))
    for mark in (within, after):
        assert [event["n"] for event in audit_events(log, mark)] == [2, 3]
    assert [event["n"] for event in audit_events(log, after - 1)] == [2, 3]
