"""The decision table of a purge: every rule, and that removal needs all of them to be silent."""

from dataclasses import replace

import pytest

from agent.snapshots.model import Moment, Retention, Situation, SnapshotFacts, SyncPoint
from agent.snapshots.purging import PurgeOrder, PurgeTarget, SyncKnowledge, decide_purge
from common.snapshot_words import Owner, PurgeOutcome, RetainReason
from tests.agent.snapshots.caching import START, pod

NOW = Moment(START)
SYNC = SyncPoint(3, 7)
KNOWN = SyncKnowledge(SYNC, fresh=True)
POD = pod("ns", "web")
ORDER = PurgeOrder(POD, SYNC)
PERSON = PurgeOrder(Owner("", "", "", POD.vm_name))
OWNED = Situation(vm_owned=True)
FACTS = SnapshotFacts(owner=POD)
TARGET = PurgeTarget(POD.vm_name, OWNED, FACTS, seen=SYNC, unclaimed_since=SYNC)
KEPT = Retention(POD, RetainReason.SEAT_RELEASE, START)
ENDING = replace(KEPT, expires_at=START - 1)


def decided(
    order: PurgeOrder = ORDER,
    target: PurgeTarget = TARGET,
    knowledge: SyncKnowledge = KNOWN,
    moment: Moment = NOW,
    trusted: tuple[str, ...] = (),
) -> tuple[str, str]:
    decision = decide_purge(order, target, knowledge, trusted_prefixes=trusted, moment=moment)
    return decision.outcome.name, decision.deferred_reason


def test_what_all_rules_allow_is_purged() -> None:
    assert decided() == ("PURGED", "")


@pytest.mark.parametrize(
    ("knowledge", "point"),
    [
        (SyncKnowledge(), SYNC),
        (SyncKnowledge(SYNC, fresh=False), SYNC),
        (KNOWN, SyncPoint(3, 8)),
        (KNOWN, SyncPoint(2, 7)),
        (KNOWN, SyncPoint(4, 1)),
        (KNOWN, SyncPoint(3, 0)),
    ],
    ids=["no sync since the start", "too old", "not applied yet", "older epoch", "newer epoch", "no revision"],
)
def test_without_the_sync_it_refers_to_a_purge_is_deferred(knowledge: SyncKnowledge, point: SyncPoint) -> None:
    assert decided(replace(ORDER, point=point), knowledge=knowledge) == ("DEFERRED", "OWNER_SYNC_BEHIND")


@pytest.mark.parametrize("knowledge", [SyncKnowledge(), SyncKnowledge(SYNC, fresh=False), KNOWN])
def test_a_person_needs_no_sync(knowledge: SyncKnowledge) -> None:
    assert decided(PERSON, replace(TARGET, seen=None, unclaimed_since=None), knowledge) == ("PURGED", "")


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        (replace(OWNED, purging=True), "NOTHING_TO_PURGE"),
        (replace(OWNED, pending=True), "SKIPPED_PENDING"),
        (replace(OWNED, claimed=True), "SKIPPED_IN_USE"),
        (replace(OWNED, engine_in_use=True), "SKIPPED_IN_USE"),
        (replace(OWNED, everything_in_use=True), "SKIPPED_IN_USE"),
        (replace(OWNED, vm_owned=False), "SKIPPED_FOREIGN"),
    ],
)
@pytest.mark.parametrize("order", [ORDER, PERSON, replace(PERSON, force=True)], ids=["controller", "person", "force"])
def test_nobody_removes_what_is_in_use_pending_or_shared(order: PurgeOrder, situation: Situation, outcome: str) -> None:
    """F23: what is being written is skipped with a reason, by force too."""
    assert decided(order, replace(TARGET, situation=situation)) == (outcome, "")


@pytest.mark.parametrize("order", [ORDER, PERSON])
def test_what_cannot_be_read_is_deferred(order: PurgeOrder) -> None:
    assert decided(order, replace(TARGET, unreadable=True)) == ("DEFERRED", "STORE_UNAVAILABLE")


@pytest.mark.parametrize(
    ("order", "facts", "outcome"),
    [
        (ORDER, replace(FACTS, retentions=(KEPT,)), "SKIPPED_RETAINED"),
        (PERSON, replace(FACTS, retentions=(KEPT,)), "SKIPPED_RETAINED"),
        (replace(PERSON, force=True), replace(FACTS, retentions=(KEPT,)), "PURGED"),
        (replace(ORDER, force=True), replace(FACTS, retentions=(KEPT,)), "SKIPPED_RETAINED"),
        (ORDER, replace(FACTS, retentions=(ENDING,)), "PURGED"),
        (ORDER, replace(FACTS, retentions=(ENDING, KEPT)), "SKIPPED_RETAINED"),
    ],
    ids=["retained", "by a person", "force", "force of a controller", "expired", "one of two expired"],
)
def test_a_retained_snapshot_goes_only_by_a_persons_force(
    order: PurgeOrder, facts: SnapshotFacts, outcome: str
) -> None:
    assert decided(order, replace(TARGET, facts=facts)) == (outcome, "")


def test_nothing_expires_while_the_clock_is_in_doubt() -> None:
    """F30: a clock far ahead ends no retention."""
    target = replace(TARGET, facts=replace(FACTS, retentions=(ENDING,)))
    assert decided(target=target, moment=Moment(START + 10**9, clock_in_doubt=True)) == ("SKIPPED_RETAINED", "")


@pytest.mark.parametrize(
    ("owner", "recorded", "trusted", "outcome"),
    [
        (pod("a", "b-c"), pod("a-b", "c"), (), "SKIPPED_FOREIGN"),
        (pod("a-b", "c"), pod("a-b", "c", "another-uid"), (), "PURGED"),
        (pod("a-b", "c"), None, (), "PURGED"),
        (pod("a-b", "c", managed=False), None, (), "SKIPPED_FOREIGN"),
        (pod("a-b", "c"), pod("a-b", "c", managed=False), (), "SKIPPED_FOREIGN"),
        (pod("evil", "p", vm_name="vk-a-b-c"), pod("a-b", "c"), (), "SKIPPED_FOREIGN"),
        (pod("evil", "p", vm_name="vk-a-b-c"), None, (), "SKIPPED_FOREIGN"),
        (pod("evil", "p", vm_name="vk-a-b-c"), pod("evil", "p", vm_name="vk-a-b-c"), (), "SKIPPED_FOREIGN"),
        (pod("evil", "p", vm_name="vk-a-b-c"), pod("evil", "p", vm_name="vk-a-b-c"), ("vk-a-",), "PURGED"),
        (pod("evil", "p", vm_name="vk-a-b-c"), pod("a-b", "c"), ("vk-a-",), "SKIPPED_FOREIGN"),
    ],
)
def test_only_the_pod_recorded_for_a_snapshot_has_it_removed(
    owner: Owner, recorded: Owner | None, trusted: tuple[str, ...], outcome: str
) -> None:
    """F29, F31: one VM name, two pods; a name of another tenant written into an annotation."""
    target = replace(TARGET, name="vk-a-b-c", facts=SnapshotFacts(owner=recorded))
    assert decided(PurgeOrder(owner, SYNC), target, trusted=trusted) == (outcome, "")


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (replace(TARGET, seen=None), ("SKIPPED_NEWER", "")),
        (replace(TARGET, seen=SyncPoint(3, 8)), ("SKIPPED_NEWER", "")),
        (replace(TARGET, unclaimed_since=None), ("DEFERRED", "OWNER_SYNC_BEHIND")),
        (replace(TARGET, unclaimed_since=SyncPoint(3, 8)), ("DEFERRED", "OWNER_SYNC_BEHIND")),
        (replace(TARGET, seen=SyncPoint(3, 1), unclaimed_since=SyncPoint(3, 2)), ("PURGED", "")),
    ],
    ids=["never seen by a sync", "seen later", "never unclaimed", "unclaimed later", "seen long ago"],
)
def test_a_late_purge_reaches_only_what_its_sync_saw_unclaimed(target: PurgeTarget, answer: tuple[str, str]) -> None:
    """F32: what the next pod of the name made stays."""
    knowledge = SyncKnowledge(SyncPoint(3, 9), fresh=True)
    assert decided(target=target, knowledge=knowledge) == answer


def test_every_outcome_but_purged_says_why() -> None:
    for situation in (replace(OWNED, pending=True), replace(OWNED, claimed=True), replace(OWNED, vm_owned=False)):
        decision = decide_purge(ORDER, replace(TARGET, situation=situation), KNOWN, trusted_prefixes=(), moment=NOW)
        assert decision.message
        assert decision.outcome is not PurgeOutcome.PURGED
