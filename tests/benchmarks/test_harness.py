"""The rules by which a measurement becomes a verdict."""

import pytest

from benchmarks.harness import (
    Verdict,
    at_least,
    at_most,
    figure,
    median_ratio,
    not_measured,
    percentile,
    take_turns,
)


@pytest.mark.parametrize(
    ("value", "most", "least"),
    [(0.99, "met", "missed"), (1.0, "met", "met"), (1.01, "missed", "met")],
)
def test_a_bound_itself_is_within(value: float, most: Verdict, least: Verdict) -> None:
    assert at_most("name", "what", "peer", value, 1.0, "x").verdict == most
    assert at_least("name", "what", "peer", value, 1.0, "x").verdict == least


def test_what_could_not_be_measured_is_not_met() -> None:
    row = not_measured("name", "what", "peer", "≤ 1 x", "no Go")
    assert (row.verdict, row.value, row.detail) == ("not measured", None, "no Go")


def test_sides_take_turns_and_each_begins_a_round() -> None:
    order: list[str] = []

    def side(name: str) -> str:
        order.append(name)
        return name

    results = take_turns(3, lambda: side("a"), lambda: side("b"))
    assert "".join(order) == "abbaab"
    assert results == [["a"] * 3, ["b"] * 3]


def test_the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians() -> None:
    assert median_ratio([1, 10, 3], [1, 5, 1]) == 2


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([5], 99, 5), ([3, 1, 2], 50, 2), (range(1, 101), 99, 99), (range(1, 101), 100, 100)],
)
def test_percentiles_are_values_that_were_seen(values: list[float], percent: int, expected: float) -> None:
    assert percentile(values, percent) == expected


@pytest.mark.parametrize(
    ("value", "shown"), [(0.5, "0.500"), (1.234, "1.23"), (123.4, "123"), (7, "7"), (0, "0"), (0.0002612, "0.00026")]
)
def test_a_figure_is_short_and_never_rounds_to_nothing(value: float, shown: str) -> None:
    assert figure(value) == shown
