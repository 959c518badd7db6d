"""What every benchmark shares: taking turns, medians, verdicts.

A figure of this machine means nothing on another one, and on a busy machine nothing a minute later. So a row compares
two things that are run in turn, round after round, and is judged by the median of the rounds' ratios; rows without a
peer are judged by an absolute bound and say so.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

Verdict = Literal["met", "missed", "not measured"]

TIMES = "×"  # noqa: RUF001 (the sign people write between a number and what it multiplies)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to measure: `rounds` of each side, and whether the long parts are shortened for a first look."""

    rounds: int
    quick: bool

    def pick(self, full: int, quick: int) -> int:
        """Return the full or the quick size of something."""
        return quick if self.quick else full


FULL = Scale(rounds=5, quick=False)
QUICK = Scale(rounds=2, quick=True)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what was measured against what, the figure, its bound and whether it holds."""

    benchmark: str
    what: str
    against: str
    measured: str
    must_be: str
    verdict: Verdict
    value: float | None = None
    detail: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the row as plain values."""
        return asdict(self)


def at_most(benchmark: str, what: str, against: str, value: float, bound: float, unit: str, detail: str = "") -> Row:
    """Judge a value that must not exceed its bound; `unit` follows both in the table."""
    return _judged(benchmark, what, against, value, "≤", bound, unit, met=value <= bound, detail=detail)


def at_least(benchmark: str, what: str, against: str, value: float, bound: float, unit: str, detail: str = "") -> Row:
    """Judge a value that must reach its bound; `unit` follows both in the table."""
    return _judged(benchmark, what, against, value, "≥", bound, unit, met=value >= bound, detail=detail)


def not_measured(benchmark: str, what: str, against: str, must_be: str, why: str) -> Row:
    """Return the row of something that could not be measured here, with the reason in its detail."""
    return Row(benchmark, what, against, "-", must_be, "not measured", None, why)


def _judged(
    benchmark: str,
    what: str,
    against: str,
    value: float,
    sign: str,
    bound: float,
    unit: str,
    *,
    met: bool,
    detail: str,
) -> Row:
    verdict: Verdict = "met" if met else "missed"
    return Row(benchmark, what, against, f"{figure(value)} {unit}", f"{sign} {bound:g} {unit}", verdict, value, detail)


def figure(value: float) -> str:
    """Return a number that is not negative with about three digits, without an exponent."""
    if value >= 100 or value == int(value):
        return f"{value:.0f}"
    if value >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if value >= 0.01 else f"{value:.5f}"


def take_turns(rounds: int, *runs: Callable[[], T]) -> list[list[T]]:
    """Run each `rounds` times in turn, each round begun by another, so that none always follows the same one's mess.

    Returns the results of each, in the order of the rounds.
    """
    results: list[list[T]] = [[] for _ in runs]
    for turn in range(rounds):
        for place in range(len(runs)):
            side = (turn + place) % len(runs)
            results[side].append(runs[side]())
    return results


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which this share of the values lies, by the nearest rank."""
    return sorted(values)[(len(values) - 1) * percent // 100]


def median_ratio(ours: Sequence[float], peers: Sequence[float]) -> float:
    """Return the median of the rounds' ratios: a round that was disturbed as a whole counts once, for both."""
    return statistics.median(mine / theirs for mine, theirs in zip(ours, peers, strict=True))


def compared(unit: str, ours: Sequence[float], peers: Sequence[float]) -> str:
    """Return the two medians for a row's detail."""
    return f"{figure(statistics.median(ours))} {unit} against {figure(statistics.median(peers))} {unit}"
