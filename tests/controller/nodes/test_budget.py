"""What one Node may cost the API server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.nodes.budget import BURST, PER_SECOND, WriteBudget


def test_a_burst_and_then_a_rhythm() -> None:
    budget = WriteBudget()
    for _ in range(int(BURST)):
        assert budget.pause(100.0) == 0
        budget.spend()
    assert budget.pause(100.0) == 1 / PER_SECOND
    assert budget.pause(100.0 + 0.5 / PER_SECOND) == 0.5 / PER_SECOND
    assert budget.pause(100.0 + 1 / PER_SECOND) == 0


@given(st.lists(st.floats(0, 100), max_size=300))
def test_no_order_of_wishes_gets_more(gaps: list[float]) -> None:
    budget, now, written = WriteBudget(), 1000.0, 0
    for gap in gaps:
        now += gap
        if budget.pause(now) == 0:
            budget.spend()
            written += 1
    assert written <= BURST + (now - 1000.0) * PER_SECOND + 1
