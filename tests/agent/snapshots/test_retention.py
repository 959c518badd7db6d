"""How promises begin and end: every event, and that none of them weakens a promise by accident."""

from dataclasses import replace

import pytest

from agent.snapshots.errors import SnapshotIdMismatchError, SnapshotInvalidError, TooManyRequestsError
from agent.snapshots.model import Moment, Retention, Situation, SnapshotFacts, strongest
from agent.snapshots.retention import (
    MAX_RETENTIONS_PER_SNAPSHOT,
    RetainRequest,
    RetainTarget,
    decide_release,
    decide_retain,
    decide_sync,
    restamp,
    settle,
)
from common.snapshot_words import Owner, RetainOutcome, RetainReason
from tests.agent.snapshots.caching import DAY, HOUR, START, pod

NOW = Moment(START)
OLD, NEW = pod("ns", "web", "uid-old"), pod("ns", "web", "uid-new")
KEEPING = replace(OLD, keep_on_delete=True)
OTHER = pod("other", "p", "uid-other", vm_name="vk-ns-web")
HELD = Retention(OLD, RetainReason.SEAT_RELEASE, START - HOUR)
VM = OLD.vm_name


def synced(
    facts: SnapshotFacts, before: tuple[Owner, ...], after: tuple[Owner, ...], *, keepable: bool = True
) -> tuple[SnapshotFacts, set[str]]:
    decision = decide_sync(facts, before, after, keepable=keepable, trusted_prefixes=(), moment=NOW)
    return decision.facts, set(decision.superseded_uids)


@pytest.mark.parametrize(
    ("before", "after", "keepable", "kept_for"),
    [
        ((KEEPING,), (), True, ["uid-old"]),
        ((OLD,), (), True, []),
        ((KEEPING,), (KEEPING,), True, []),
        ((KEEPING,), (OLD,), True, []),
        ((KEEPING,), (NEW,), True, []),
        ((KEEPING,), (OTHER,), True, ["uid-old"]),
        ((KEEPING,), (), False, []),
        ((replace(OTHER, keep_on_delete=True),), (), True, ["uid-other"]),
        ((replace(KEEPING, managed=False),), (), True, ["uid-old"]),
    ],
    ids=[
        "left with the flag",
        "left without",
        "stays",
        "stays, flag taken back",
        "replaced by its successor",
        "left, another pod claims",
        "left, but nothing to keep",
        "foreign name",
        "unmanaged",
    ],
)
def test_an_owner_that_left_with_the_flag_leaves_a_promise(
    before: tuple[Owner, ...], after: tuple[Owner, ...], keepable: bool, kept_for: list[str]
) -> None:
    """F18, F19: the flag of the last sync counts, also without a retain call."""
    facts, _ = synced(SnapshotFacts(owner=OLD), before, after, keepable=keepable)
    assert [kept.owner.pod_uid for kept in facts.retentions] == kept_for


def test_a_successor_ends_the_promise_and_is_remembered() -> None:
    facts, superseded = synced(SnapshotFacts(owner=OLD, retentions=(HELD,)), (), (NEW,))
    assert facts.retentions == ()
    assert facts.owner == NEW
    assert superseded == {"uid-old"}


@pytest.mark.parametrize("claimant", [OLD, OTHER, pod("ns", "web-0", "uid-x", vm_name=VM)])
def test_nobody_but_a_successor_ends_a_promise(claimant: Owner) -> None:
    """F29: another pod that claims the same VM name changes nothing for the first."""
    facts, superseded = synced(SnapshotFacts(owner=OLD, retentions=(HELD,)), (), (claimant,))
    assert facts.retentions == (HELD,)
    assert facts.owner == OLD
    assert superseded == set()


def test_namespace_and_pod_once_recorded_never_change() -> None:
    first, second = pod("a-b", "c"), pod("a", "b-c")
    facts, _ = synced(SnapshotFacts(), (), (first,))
    facts, _ = synced(facts, (first,), ())
    facts, _ = synced(facts, (), (second,))
    assert facts.owner == first


@pytest.mark.parametrize(
    ("claimants", "recorded"),
    [
        ((OLD,), OLD),
        ((OTHER,), OTHER),
        ((OTHER, OLD), OLD),
        ((pod("a-b", "c"), pod("a", "b-c")), None),
    ],
    ids=["own name", "foreign name alone", "own before foreign", "two with the same right"],
)
def test_who_is_recorded_first(claimants: tuple[Owner, ...], recorded: Owner | None) -> None:
    facts, _ = synced(SnapshotFacts(), (), claimants)
    assert facts.owner == recorded


def test_the_end_of_a_claim_is_a_use() -> None:
    assert synced(SnapshotFacts(), (OLD,), ())[0].last_used_at == START
    assert synced(SnapshotFacts(), (OLD,), (OLD,))[0].last_used_at == 0


def retained(
    request: RetainRequest, *targets: RetainTarget, superseded: frozenset[str] = frozenset()
) -> tuple[RetainOutcome, dict[str, SnapshotFacts]]:
    decision = decide_retain(request, targets, superseded, NOW)
    return decision.outcome, decision.facts


REQUEST = RetainRequest(OLD, RetainReason.SEAT_RELEASE)
IMAGE = RetainTarget(VM, "id-1", SnapshotFacts(owner=OLD))
FORK = RetainTarget(f"fork-{VM}", "id-2", SnapshotFacts(owner=OLD))


def test_both_snapshots_of_a_vm_are_kept() -> None:
    outcome, facts = retained(REQUEST, IMAGE, FORK)
    assert outcome is RetainOutcome.RETAINED
    assert set(facts) == {VM, f"fork-{VM}"}
    assert facts[VM].retentions == (Retention(OLD, RetainReason.SEAT_RELEASE, START),)


@pytest.mark.parametrize("targets", [(), (replace(IMAGE, present=False),)], ids=["none", "still being written"])
def test_without_a_snapshot_nothing_is_recorded(targets: tuple[RetainTarget, ...]) -> None:
    assert retained(REQUEST, *targets) == (RetainOutcome.NOTHING_TO_RETAIN, {})


def test_a_late_retain_for_a_superseded_pod_does_nothing() -> None:
    assert retained(REQUEST, IMAGE, superseded=frozenset({"uid-old"})) == (RetainOutcome.SUPERSEDED, {})


@pytest.mark.parametrize("targets", [(IMAGE,), (FORK,), (IMAGE, FORK)])
def test_another_id_than_expected_is_refused(targets: tuple[RetainTarget, ...]) -> None:
    with pytest.raises(SnapshotIdMismatchError):
        retained(replace(REQUEST, expected_snapshot_id="id-9"), *targets)


@pytest.mark.parametrize(
    "targets",
    [
        (replace(IMAGE, invalid=True),),
        (replace(IMAGE, invalid=True), FORK),
        (replace(FORK, invalid=True),),
    ],
)
def test_a_damaged_snapshot_is_never_retained(targets: tuple[RetainTarget, ...]) -> None:
    """F25."""
    with pytest.raises(SnapshotInvalidError):
        retained(REQUEST, *targets)


def test_a_damaged_baseline_does_not_keep_the_image_from_being_kept() -> None:
    assert set(retained(REQUEST, IMAGE, replace(FORK, invalid=True))[1]) == {VM}


@pytest.mark.parametrize(
    ("held", "request_", "expires_at", "reason"),
    [
        (None, replace(REQUEST, ttl_seconds=HOUR), START + HOUR, RetainReason.SEAT_RELEASE),
        (HELD, replace(REQUEST, ttl_seconds=HOUR, reason=RetainReason.DISRUPTION), None, RetainReason.SEAT_RELEASE),
        (
            replace(HELD, expires_at=START + DAY),
            replace(REQUEST, ttl_seconds=HOUR),
            START + DAY,
            RetainReason.SEAT_RELEASE,
        ),
        (
            replace(HELD, expires_at=START + HOUR, reason=RetainReason.DISRUPTION),
            replace(REQUEST, ttl_seconds=DAY, reason=RetainReason.DISRUPTION),
            START + DAY,
            RetainReason.DISRUPTION,
        ),
        (replace(HELD, expires_at=START + HOUR, reason=RetainReason.DISRUPTION), REQUEST, None, REQUEST.reason),
    ],
    ids=["new", "never shortened", "longest counts", "renewed", "made lasting"],
)
def test_a_promise_is_never_weakened(
    held: Retention | None, request_: RetainRequest, expires_at: float | None, reason: RetainReason
) -> None:
    """A late or stale call for the same pod changes the promise for the longer only."""
    target = replace(IMAGE, facts=replace(IMAGE.facts, retentions=(held,) if held else ()))
    kept = retained(request_, target)[1][VM].retentions
    assert len(kept) == 1
    assert (kept[0].expires_at, kept[0].reason) == (expires_at, reason)


def test_promises_of_two_pods_stand_beside_each_other() -> None:
    target = replace(IMAGE, facts=replace(IMAGE.facts, retentions=(HELD,)))
    facts = retained(RetainRequest(OTHER, RetainReason.REQUESTED), target)[1][VM]
    assert {kept.owner.pod_uid for kept in facts.retentions} == {"uid-old", "uid-other"}
    assert decide_release(facts, pod_uid="uid-old").retentions[0].owner == OTHER
    assert decide_release(facts, pod_uid="").retentions == ()
    assert decide_release(facts, pod_uid="uid-nobody") is facts


def test_promises_on_one_snapshot_are_bounded() -> None:
    """F31: pods that claim another's name neither fill the records nor keep its own pod from keeping it."""
    many = tuple(replace(HELD, owner=replace(OTHER, pod_uid=f"uid-{n}")) for n in range(MAX_RETENTIONS_PER_SNAPSHOT))
    facts = replace(IMAGE.facts, retentions=many)
    with pytest.raises(TooManyRequestsError):
        retained(replace(REQUEST, owner=OTHER), replace(IMAGE, facts=facts))
    assert len(retained(REQUEST, replace(IMAGE, facts=facts))[1][VM].retentions) == len(many) + 1
    assert synced(facts, (replace(OTHER, keep_on_delete=True),), ())[0].retentions == many
    assert len(synced(facts, (KEEPING,), ())[0].retentions) == len(many) + 1
    again = replace(many[0].owner, keep_on_delete=True)
    assert len(synced(facts, (again,), ())[0].retentions) == len(many)


OWNED = Situation(vm_owned=True)


@pytest.mark.parametrize(
    ("facts", "situation", "unclaimed_at"),
    [
        (SnapshotFacts(), OWNED, START),
        (SnapshotFacts(unclaimed_at=START - DAY), OWNED, START - DAY),
        (SnapshotFacts(unclaimed_at=START - DAY), replace(OWNED, claimed=True), None),
        (SnapshotFacts(unclaimed_at=START - DAY), replace(OWNED, engine_in_use=True), None),
        (SnapshotFacts(unclaimed_at=START - DAY, retentions=(HELD,)), OWNED, None),
        (SnapshotFacts(retentions=(replace(HELD, expires_at=START),)), OWNED, START),
        (SnapshotFacts(), replace(OWNED, invalid=True), START),
        (SnapshotFacts(), replace(OWNED, vm_owned=False), None),
    ],
    ids=["first sight", "still", "claimed", "used", "retained", "just expired", "invalid", "shared"],
)
def test_the_grace_period_counts_from_the_first_sight_without_interruption(
    facts: SnapshotFacts, situation: Situation, unclaimed_at: float | None
) -> None:
    assert settle(facts, situation, NOW).unclaimed_at == unclaimed_at


def test_times_of_a_doubtful_clock_start_anew_once_it_is_confirmed() -> None:
    """F30: a promise made under a clock that ran ahead or behind lasts as long as was promised."""
    doubtful = Moment(START - 365 * DAY, clock_in_doubt=True)
    request = replace(REQUEST, ttl_seconds=DAY)
    facts = decide_retain(request, [IMAGE], frozenset(), doubtful).facts[VM]
    settled = settle(facts, OWNED, doubtful)
    assert restamp(settled, NOW).retentions[0].expires_at == START + DAY
    unclaimed = settle(SnapshotFacts(), OWNED, doubtful)
    assert restamp(unclaimed, NOW).unclaimed_at == START
    assert restamp(SnapshotFacts(unclaimed_at=1.0), NOW).unclaimed_at == 1.0


def test_the_promise_that_lasts_longest_is_shown() -> None:
    short, long_ = replace(HELD, expires_at=START + HOUR), replace(HELD, expires_at=START + DAY)
    assert strongest(()) is None
    assert strongest((short, long_)) == long_
    assert strongest((long_, HELD, short)) == HELD


@pytest.mark.parametrize("said", [[True], [False, True], [True, False]])
def test_whether_a_backup_was_seen_is_what_was_said_last(said: list[bool]) -> None:
    facts = IMAGE.facts
    for each in said:
        request = replace(REQUEST, backup_verified=each)
        facts = retained(request, replace(IMAGE, facts=facts))[1][VM]
    assert [kept.backup_verified for kept in facts.retentions] == [said[-1]]


def test_a_sync_that_makes_a_flag_a_promise_says_nothing_about_a_backup() -> None:
    flagged = replace(OLD, keep_on_delete=True)
    facts = retained(replace(REQUEST, owner=flagged, backup_verified=True), IMAGE)[1][VM]
    after, _ = synced(facts, (flagged,), ())
    assert [kept.backup_verified for kept in after.retentions] == [True]
