"""Pages, counts and the feed of changes: always what a walk over everything would give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.errors import InvalidFieldError
from agent.snapshots.inventory import Inventory, KnownSnapshot
from agent.snapshots.model import Situation, SnapshotState, state_of
from agent.snapshots.page_token import name_after, page_token
from agent.snapshots.stores.contract import EntryCondition, StoredSnapshot

_names = st.text("abc", min_size=1, max_size=3)
_states = st.sampled_from(list(SnapshotState))


def record(name: str, size: int = 1) -> KnownSnapshot:
    return KnownSnapshot(StoredSnapshot(name, f"id-{name}", EntryCondition.READY, name, size, size, size), f"id-{name}")


@given(
    st.lists(st.tuples(_names, _states, st.integers(0, 9), st.booleans()), max_size=60),
    st.none() | st.frozensets(_states),
    st.integers(1, 5),
)
def test_pages_and_totals_are_those_of_a_full_walk(
    changes: list[tuple[str, SnapshotState, int, bool]], states: frozenset[SnapshotState] | None, size: int
) -> None:
    inventory = Inventory(lambda _name, _record: None)
    expected: dict[str, tuple[SnapshotState, int]] = {}
    for name, state, allocated, removed in changes:
        if removed:
            inventory.remove(name)
            expected.pop(name, None)
        else:
            inventory.put(record(name, allocated), state)
            expected[name] = (state, allocated)
    wanted = sorted(name for name, (state, _) in expected.items() if states is None or state in states)
    found: list[str] = []
    while page := inventory.page(found[-1] if found else "", size, states):
        assert len(page) <= size
        found.extend(one.name for one in page)
    assert found == wanted
    for state, total in inventory.totals().items():
        sizes = [allocated for one, allocated in expected.values() if one is state]
        assert (total.count, total.allocated_bytes) == (len(sizes), sum(sizes))
    assert len(inventory) == len(expected)
    assert inventory.unseen.keys() == set(expected)


OWNED = Situation(vm_owned=True)


@pytest.mark.parametrize(
    ("situation", "retained", "state"),
    [
        (Situation(True, True, True, True, True, True, True), True, "PURGING"),
        (Situation(True, False, True, True, True, True, True), True, "PENDING"),
        (Situation(False, False, False, True, False, True, False), True, "IN_USE"),
        (Situation(False, False, False, False, True, True, False), True, "IN_USE"),
        (Situation(True, False, False, False, False, True, True), True, "IN_USE"),
        (Situation(False, False, False, False, False, True, True), True, "SHARED"),
        (Situation(True, False, False, False, False, True, False), True, "INVALID"),
        (OWNED, True, "RETAINED"),
        (OWNED, False, "UNCLAIMED"),
    ],
)
def test_the_first_state_that_fits_counts(situation: Situation, retained: bool, state: str) -> None:
    assert state_of(situation, retained=retained).name == state


@given(st.text(min_size=1, max_size=20), st.lists(st.integers(0, 7)), st.text(max_size=5))
def test_a_page_token_leads_back_to_its_name(name: str, states: list[int], vm_name: str) -> None:
    token = page_token(name, states, vm_name)
    assert name_after(token, list(reversed(states)), vm_name) == name
    with pytest.raises(InvalidFieldError):
        name_after(token, states, vm_name + "x")


@given(st.text(max_size=60))
def test_a_token_that_is_not_ours_is_refused(token: str) -> None:
    if token:
        with pytest.raises(InvalidFieldError):
            name_after(token, [], "")
    else:
        assert name_after(token, [], "") == ""
