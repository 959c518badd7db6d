"""Every way an amount may be spelled, and what Kubernetes makes of it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.quantity import (
    MAX_INT64,
    QuantityError,
    format_bytes,
    format_count,
    format_cpu,
    parse_quantity,
    values_equal,
)

READ_AS_BYTES = [
    ("0", 0),
    ("+5", 5),
    ("007", 7),
    (".5Ki", 512),
    ("5.", 5),
    ("1.5Gi", 1610612736),
    ("1.2Gi", 1288490189),
    ("129e6", 129000000),
    ("129E6", 129000000),
    ("129M", 129000000),
    ("1e+3", 1000),
    ("1000e-3", 1),
    ("1E", 10**18),
    ("1Ei", 2**60),
    ("123Mi", 128974848),
    ("100m", 1),
    ("1n", 1),
    ("1u", 1),
    ("0.0000000001", 1),
    ("1e-999999999", 1),
    ("0e999999999", 0),
    ("7P", 7 * 10**15),
    ("9223372036854775807", MAX_INT64),
    ("-1", -1),
    ("-1500m", -2),
    ("-5e-10", -1),
]

REFUSED = [
    "",
    " ",
    " 5Gi",
    "5Gi ",
    "5 Gi",
    "5Gi\n",
    "5GB",
    "5Gb",
    "5K",
    "5ki",
    "5mi",
    "NaN",
    "nan",
    "Inf",
    "0x10",
    "1_000",
    "1,5",
    "1.2.3",
    "--1",
    "+-1",
    "1e",
    "1e1.5",
    "1eE5",
    "1Ki5",
    "Ki",
    ".",
    "+",
    "\N{ARABIC-INDIC DIGIT FIVE}",
    "9223372036854775808",
    "8Ei",
    "10E",
    "1e19",
    "1e999999999",
    "1" * 200,
]


@pytest.mark.parametrize(("text", "expected"), READ_AS_BYTES)
def test_reads_as_kubernetes_does(text: str, expected: int) -> None:
    """F7: each accepted spelling gives Kubernetes' number, fractions rounded up to a whole byte."""
    assert parse_quantity(text).bytes() == expected


@pytest.mark.parametrize("text", REFUSED)
def test_refuses(text: str) -> None:
    """F7: what Kubernetes refuses, and what does not fit 63 bits, is refused with a rule in words."""
    with pytest.raises(QuantityError) as caught:
        parse_quantity(text)
    assert str(caught.value).startswith("must")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("32", 32000), ("3100m", 3100), ("0.1", 100), ("1u", 1), ("2.5", 2500), ("1e-3", 1), ("1k", 1_000_000)],
)
def test_millicores_round_up(text: str, expected: int) -> None:
    assert parse_quantity(text).millicores() == expected


def test_millicores_beyond_63_bits_are_refused() -> None:
    """F7: an amount that is a quantity but no CPU count that fits."""
    with pytest.raises(QuantityError):
        parse_quantity("9223372036854775807").millicores()


def test_negative_is_visible_to_the_caller() -> None:
    """F7: Kubernetes reads -1; whoever sets a capacity has to see the sign."""
    assert parse_quantity("-1").is_negative()
    assert not parse_quantity("-0").is_negative()


@pytest.mark.parametrize("text", ["1.5", "100m"])
def test_count_takes_whole_numbers_only(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text).count()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0"),
        (1023, "1023"),
        (1000, "1k"),
        (1024, "1Ki"),
        (1536, "1536"),
        (1390720000, "1358125Ki"),
        (1310720000, "1250Mi"),
        (4096000000, "4000000Ki"),
        (4000000000, "3906250Ki"),
        (108075011276, "108075011276"),
        (2**40, "1Ti"),
        (2**62, "4Ei"),
        (MAX_INT64, str(MAX_INT64)),
        (-2048, "-2Ki"),
    ],
)
def test_binary_form(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@pytest.mark.parametrize(
    ("millicores", "expected"),
    [(0, "0"), (25000, "25"), (800, "800m"), (3100, "3100m"), (1_000_000, "1k"), (1_024_000, "1024")],
)
def test_cpu_form(millicores: int, expected: str) -> None:
    assert format_cpu(millicores) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, "0"), (256, "256"), (1000, "1k"), (1500, "1500")])
def test_count_form(count: int, expected: str) -> None:
    assert format_count(count) == expected


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("1Gi", "1024Mi", True),
        ("1Gi", "1073741824", True),
        ("25", "25000m", True),
        ("1k", "1e3", True),
        ("1.0", "1", True),
        ("0", "-0", True),
        ("1Gi", "1G", False),
        ("1", "1n", False),
        ("garbage", "garbage", True),
        ("garbage", "1", False),
        ("1", "", False),
    ],
)
def test_spellings_are_compared_as_numbers(left: str, right: str, *, equal: bool) -> None:
    """F10: another spelling of the same number is no change."""
    assert values_equal(left, right) is equal
    assert values_equal(right, left) is equal


@given(st.integers(min_value=0, max_value=MAX_INT64))
def test_written_bytes_read_back(count: int) -> None:
    assert parse_quantity(format_bytes(count)).bytes() == count
    assert parse_quantity(format_count(count)).count() == count


@given(st.integers(min_value=0, max_value=MAX_INT64))
def test_written_millicores_read_back(millicores: int) -> None:
    assert parse_quantity(format_cpu(millicores)).millicores() == millicores


@given(st.text(max_size=140))
def test_any_text_is_read_or_refused(text: str) -> None:
    """F7: no input makes the parser fail in any other way."""
    try:
        quantity = parse_quantity(text)
    except QuantityError:
        return
    assert abs(quantity.nanos) <= MAX_INT64 * 10**9


@given(
    st.integers(min_value=0, max_value=10**12),
    st.integers(min_value=0, max_value=10**6),
    st.sampled_from(["", "m", "k", "M", "Ki", "Mi", "e3", "E-3"]),
)
def test_fractions_are_exact(whole: int, part: int, suffix: str) -> None:
    scale = {
        "": Fraction(1),
        "m": Fraction(1, 1000),
        "k": Fraction(1000),
        "M": Fraction(10**6),
        "Ki": Fraction(1024),
        "Mi": Fraction(2**20),
        "e3": Fraction(1000),
        "E-3": Fraction(1, 1000),
    }[suffix]
    exact = (Fraction(whole) + Fraction(part, 10**7)) * scale
    assert 0 <= Fraction(parse_quantity(f"{whole}.{part:07d}{suffix}").nanos, 10**9) - exact < Fraction(1, 10**9)
