"""What a collection plans: nothing without cause, the right order, the bytes that really come back."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.collection import (
    GRACE_SECONDS,
    NO_PRESSURE,
    Candidate,
    CollectionRank,
    CollectionReason,
    DiskUse,
    Policy,
    Pressure,
    Watermarks,
    above_high,
    plan_collection,
    pressure_of,
)
from agent.snapshots.model import Moment, Retention, SnapshotState
from common.snapshot_words import RetainReason
from tests.agent.snapshots.caching import DAY, START, pod

NOW = Moment(START)
NO_POLICY = Policy()
POD = pod("ns", "web")
LASTING = Retention(POD, RetainReason.SEAT_RELEASE, START - DAY)
BACKED_UP = replace(LASTING, backup_verified=True)
DISRUPTED = replace(LASTING, reason=RetainReason.DISRUPTION, backup_verified=True)


@dataclass(frozen=True)
class Link:
    device: int
    inode: int
    link_count: int
    links_here: int
    allocated_bytes: int


def unclaimed(name: str, size: int = 100, *, used_days_ago: float = 10, since_days: float = 10) -> Candidate:
    return Candidate(
        name, SnapshotState.UNCLAIMED, size, START - used_days_ago * DAY, unclaimed_at=START - since_days * DAY
    )


def retained(name: str, *kept: Retention, size: int = 100, used_days_ago: float = 10) -> Candidate:
    return Candidate(name, SnapshotState.RETAINED, size, START - used_days_ago * DAY, retentions=kept or (LASTING,))


def planned(
    candidates: list[Candidate], policy: Policy = NO_POLICY, pressure: Pressure = NO_PRESSURE, moment: Moment = NOW
) -> list[tuple[str, int, str]]:
    plan = plan_collection(candidates, policy, pressure, moment)
    return [(item.name, item.bytes, item.reason.name) for item in plan]


def test_without_policy_or_pressure_nothing_is_planned() -> None:
    """F36."""
    assert planned([unclaimed("a"), retained("b")]) == []


def test_the_order_is_unclaimed_backed_up_retained_disrupted_each_by_last_use() -> None:
    candidates = [
        retained("disrupted", DISRUPTED, used_days_ago=90),
        retained("kept-new", used_days_ago=1),
        retained("kept-old", used_days_ago=80),
        retained("backed-up-new", BACKED_UP, used_days_ago=1),
        retained("backed-up-old", BACKED_UP, used_days_ago=70),
        retained("half-backed-up", BACKED_UP, LASTING, used_days_ago=79),
        unclaimed("unclaimed", used_days_ago=1),
        replace(unclaimed("invalid", used_days_ago=2), state=SnapshotState.INVALID),
    ]
    assert [name for name, _, _ in planned(candidates, Policy(keep_at_most=0))] == [
        "invalid",
        "unclaimed",
        "backed-up-old",
        "backed-up-new",
        "kept-old",
        "half-backed-up",
        "kept-new",
        "disrupted",
    ]


@pytest.mark.parametrize(
    "candidate",
    [
        unclaimed("x", since_days=GRACE_SECONDS / DAY - 0.001),
        replace(unclaimed("x"), unclaimed_at=None),
        replace(unclaimed("x"), foreign=True),
        replace(retained("x"), foreign=True),
        replace(unclaimed("x"), unreadable=True),
        *(
            replace(unclaimed("x"), state=state)
            for state in (SnapshotState.IN_USE, SnapshotState.PENDING, SnapshotState.PURGING, SnapshotState.SHARED)
        ),
    ],
)
def test_what_is_never_planned(candidate: Candidate) -> None:
    """F31: a foreign name is never collected; nor is what is in grace, in use, pending or unreadable."""
    pressure = Pressure(bytes_needed=10**12)
    assert planned([candidate], Policy(max_age_seconds=1, max_bytes=0, keep_at_most=0), pressure) == []


def test_while_the_clock_is_in_doubt_nothing_goes_for_age() -> None:
    """F30: neither the grace period nor the maximum age ends; pressure still takes what is retained."""
    doubtful = Moment(START + 365 * DAY, clock_in_doubt=True)
    candidates = [unclaimed("a"), retained("b")]
    assert planned(candidates, Policy(max_age_seconds=1), moment=doubtful) == []
    assert planned(candidates, pressure=Pressure(bytes_needed=1), moment=doubtful) == [("b", 100, "WATERMARK")]


@pytest.mark.parametrize(
    ("policy", "plan"),
    [
        (Policy(max_age_seconds=7 * DAY), [("old", "MAX_AGE")]),
        (Policy(max_bytes=250), [("new", "MAX_BYTES")]),
        (Policy(max_bytes=300), []),
        (Policy(keep_at_most=1), [("new", "KEEP_AT_MOST"), ("old", "KEEP_AT_MOST")]),
        (Policy(keep_at_most=5), []),
        (
            Policy(max_age_seconds=7 * DAY, max_bytes=250, keep_at_most=1),
            [("new", "MAX_BYTES"), ("old", "MAX_AGE")],
        ),
    ],
)
def test_criteria_unite_in_what_they_evict(policy: Policy, plan: list[tuple[str, str]]) -> None:
    candidates = [unclaimed("new", used_days_ago=1), retained("old", used_days_ago=8), retained("mid", used_days_ago=2)]
    assert [(name, reason) for name, _, reason in planned(candidates, policy)] == plan


def test_a_shared_file_comes_back_with_its_last_link() -> None:
    """Hard links inside the store, to the outside, and twice in one snapshot."""
    inside = Link(1, 10, link_count=2, links_here=1, allocated_bytes=1000)
    outside = Link(1, 11, link_count=2, links_here=1, allocated_bytes=5000)
    twice = Link(1, 12, link_count=2, links_here=2, allocated_bytes=300)
    candidates = [
        replace(unclaimed("a", 1), shared_files=(inside, outside)),
        replace(unclaimed("b", 1), shared_files=(inside, twice)),
    ]
    assert [(name, size) for name, size, _ in planned(candidates, Policy(keep_at_most=0))] == [("a", 1), ("b", 1301)]


def test_pressure_takes_as_much_as_it_needs_and_counts_what_the_policy_takes() -> None:
    candidates = [unclaimed("a", used_days_ago=9), unclaimed("b", used_days_ago=8), retained("c", used_days_ago=30)]
    assert planned(candidates, pressure=Pressure(bytes_needed=101)) == [
        ("a", 100, "WATERMARK"),
        ("b", 100, "WATERMARK"),
    ]
    assert planned(candidates, Policy(max_age_seconds=20 * DAY), Pressure(bytes_needed=101)) == [
        ("a", 100, "WATERMARK"),
        ("c", 100, "MAX_AGE"),
    ]


def test_between_the_watermarks_only_what_was_sold_goes() -> None:
    """With retained bytes sold as available, collection starts early and spares what has no backup."""
    candidates = [retained("no-backup"), retained("backed-up", BACKED_UP), unclaimed("unclaimed")]
    pressure = Pressure(bytes_needed=10**9, last_rank=CollectionRank.BACKED_UP)
    assert [name for name, _, _ in planned(candidates, pressure=pressure)] == ["unclaimed", "backed-up"]


@pytest.mark.parametrize(
    ("available", "trash", "reclaimable", "needed"),
    [
        (16, 0, False, 0),
        (15, 0, False, 0),
        (14, 0, False, 7),
        (0, 0, False, 21),
        (0, 10, False, 11),
        (0, 15, False, 0),
        (20, 0, True, 0),
        (19, 0, True, 2),
        (19, 0, False, 0),
    ],
)
def test_collection_starts_above_high_and_stops_below_low(
    available: int, trash: int, reclaimable: bool, needed: int
) -> None:
    use = DiskUse(total_bytes=100, available_bytes=available, trash_bytes=trash)
    pressure = pressure_of(use, Watermarks(reclaimable=reclaimable))
    assert pressure.bytes_needed == needed
    if needed:
        after = replace(use, available_bytes=available + needed)
        assert after.used_bytes < 80


def test_inodes_count_too_but_not_while_the_trash_holds_some() -> None:
    use = DiskUse(100, 100, total_inodes=100, available_inodes=10)
    assert above_high(use, Watermarks())
    assert pressure_of(use, Watermarks()).inodes_needed == 11
    assert not above_high(replace(use, trash_bytes=1), Watermarks())
    assert not above_high(DiskUse(0, 0), Watermarks())


_candidates = st.lists(
    st.builds(
        unclaimed,
        st.uuids().map(str),
        st.integers(0, 1000),
        used_days_ago=st.floats(0, 100),
        since_days=st.floats(0, 3),
    )
    | st.builds(
        retained, st.uuids().map(str), st.sampled_from([LASTING, BACKED_UP, DISRUPTED]), size=st.integers(0, 1000)
    ),
    max_size=30,
    unique_by=lambda one: one.name,
)
_policies = st.builds(
    Policy,
    max_age_seconds=st.none() | st.floats(0, 100 * DAY),
    max_bytes=st.none() | st.integers(0, 20000),
    keep_at_most=st.none() | st.integers(0, 30),
)


@given(_candidates, _policies, st.integers(0, 20000))
def test_a_plan_satisfies_what_it_was_made_for(candidates: list[Candidate], policy: Policy, needed: int) -> None:
    plan = plan_collection(candidates, policy, Pressure(bytes_needed=needed), NOW)
    names = [item.name for item in plan]
    assert len(set(names)) == len(names)
    everything = {
        item.name: item.bytes for item in plan_collection(candidates, Policy(keep_at_most=0), NO_PRESSURE, NOW)
    }
    assert set(names) <= set(everything)
    left = [one for one in candidates if one.name in everything and one.name not in names]
    if policy.max_bytes is not None:
        assert sum(one.exclusive_bytes for one in left) <= policy.max_bytes
    if policy.keep_at_most is not None:
        assert len(left) <= policy.keep_at_most
    if policy.max_age_seconds is not None:
        assert all(START - one.last_use_at <= policy.max_age_seconds for one in left)
    assert sum(item.bytes for item in plan) >= min(needed, sum(everything.values()))
    if not policy and not needed:
        assert plan == ()


@given(_candidates, _policies, st.integers(0, 20000), st.randoms())
def test_a_plan_does_not_depend_on_the_order_of_the_inventory(
    candidates: list[Candidate], policy: Policy, needed: int, random: object
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)  # type: ignore[attr-defined] # hypothesis gives a random.Random
    pressure = Pressure(bytes_needed=needed)
    assert plan_collection(shuffled, policy, pressure, NOW) == plan_collection(candidates, policy, pressure, NOW)


def test_reasons_are_those_of_the_api() -> None:
    assert [reason.value for reason in CollectionReason] == [1, 2, 3, 4]
