"""What agents say about snapshots, in this version's words and in those of the next."""

from __future__ import annotations

import pytest

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.snapshot_words import PurgeOutcome, RetainReason
from controller.agents.cache_client import AgentCallError, purge_result
from controller.agents.cache_messages import found_snapshot, located_snapshot

_UNKNOWN = 99


@pytest.mark.parametrize(
    ("reason", "read"),
    [
        (pb.RETAIN_REASON_SEAT_RELEASE, RetainReason.SEAT_RELEASE),
        (pb.RETAIN_REASON_DISRUPTION, RetainReason.DISRUPTION),
        (pb.RETAIN_REASON_UNSPECIFIED, RetainReason.REQUESTED),
        (_UNKNOWN, RetainReason.REQUESTED),
    ],
)
def test_whatever_the_reason_a_promise_is_a_promise(reason: int, read: RetainReason) -> None:
    kept = pb.Retention(reason=pb.RetainReason.ValueType(reason))
    assert found_snapshot(pb.Snapshot(name="vk-a-b", retention=kept)).retained is read


def test_a_state_of_a_newer_agent_is_shown_and_is_no_damage() -> None:
    snapshot = pb.Snapshot(name="vk-a-b", state=pb.SnapshotState.ValueType(_UNKNOWN))
    located = located_snapshot(snapshot)
    assert located.state == "UNKNOWN_99"
    assert not located.found.invalid


def test_what_a_newer_agent_did_is_never_taken_for_done() -> None:
    """And the results beside it are still used."""
    newer = purge_result(pb.PurgeResult(name="a", outcome=pb.PurgeOutcome.ValueType(_UNKNOWN), bytes=7))
    assert (newer.outcome, newer.deferred_reason, newer.allocated_bytes) == (
        PurgeOutcome.DEFERRED,
        "UNKNOWN_OUTCOME",
        0,
    )
    assert "99" in newer.message
    assert (
        purge_result(pb.PurgeResult(name="b", outcome=pb.PURGE_OUTCOME_PURGED, bytes=7)).outcome is PurgeOutcome.PURGED
    )


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("STORE_UNAVAILABLE", "STORE_UNAVAILABLE"),
        ("UNIMPLEMENTED", "UNIMPLEMENTED"),
        ("MADE_UP_4711", "OTHER"),
        ("", "OTHER"),
    ],
)
def test_an_agent_cannot_make_time_series_up(reason: str, label: str) -> None:
    assert AgentCallError("host", reason, "").label == label
