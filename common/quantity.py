"""Resource quantities, exactly as Kubernetes reads and writes them.

Why this exists: the agent turns operators' overrides and probed numbers into the strings of a Node, the controller
compares such strings with what the live Node carries, and the API server keeps whatever spelling it is sent. All of it
has to agree with `k8s.io/apimachinery/pkg/api/resource` to the last unit: amounts are whole nano units, never floats.

Departures, all towards refusing: text without any digit (`.`, `+`, `Ki`), more than 2^63-1 (Kubernetes silently lowers
binary values to it) and anything longer than 128 characters.
"""

import re
from dataclasses import dataclass

MAX_INT64 = 2**63 - 1

_MAX_LENGTH = 128
# Beyond this a non-zero mantissa of at most 128 characters is either far above 2^63-1 or rounds up to one nano unit;
# it keeps `1e999999999` from building a number with a billion digits.
_MAX_EXPONENT = 200
_NANO = 10**9
_MILLI = 1000

_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_BINARY_EXPONENTS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


class QuantityError(ValueError):
    """A text is not a quantity we take; `str()` of it is the rule that was broken, without the text itself."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount of some resource, in thousand-millionths of its own unit (cores, bytes, a count)."""

    nanos: int

    def is_negative(self) -> bool:
        """Whether the amount is below zero, which no capacity may be."""
        return self.nanos < 0

    def millicores(self) -> int:
        """Return the amount in thousandths, rounded up; raises `QuantityError` when that exceeds 2^63-1."""
        return _bounded(_divided_up(self.nanos, _NANO // _MILLI))

    def bytes(self) -> int:
        """Return the amount in whole units, rounded up."""
        return _divided_up(self.nanos, _NANO)

    def count(self) -> int:
        """Return the amount as a whole number; raises `QuantityError` when it is not one."""
        whole, rest = divmod(self.nanos, _NANO)
        if rest:
            raise QuantityError("must be a whole number")
        return whole


def parse_quantity(text: str) -> Quantity:
    """Read a Kubernetes quantity such as `1.5Gi`, `129e6` or `100m`; raises `QuantityError` naming the rule broken.

    The sign is read, because Kubernetes does: a caller that takes no negative amount asks `is_negative()`.
    Amounts finer than one nano unit are rounded up (away from zero) to it.
    """
    if not text:
        raise QuantityError("must not be empty")
    match = _NUMBER.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None or not (match["whole"] or match["part"]):
        raise QuantityError("must be a Kubernetes quantity: a number with an optional suffix such as m, k, Gi or e6")
    part = match["part"] or ""
    mantissa = int((match["whole"] or "") + part)
    numerator, denominator = _scale(match["suffix"] or "", match["exponent"])
    nanos = _divided_up(mantissa * numerator * _NANO, denominator * 10 ** len(part))
    if nanos > MAX_INT64 * _NANO:
        raise QuantityError("must not be more than 2^63-1")
    return Quantity(-nanos if match["sign"] == "-" else nanos)


def format_cpu(millicores: int) -> str:
    """Return the canonical decimal form of a CPU amount: `25`, `800m`, `3100m`."""
    cores, rest = divmod(millicores, _MILLI)
    return f"{millicores}m" if rest else _with_suffix(cores, 1000, _DECIMAL_SUFFIXES)


def format_bytes(count: int) -> str:
    """Return the canonical binary form of a byte count: `1250Mi`, `1358125Ki`, `108075011276`.

    Below 1024 it is the decimal form, as in Kubernetes: 1000 bytes are `1k`.
    """
    if -1024 < count < 1024:
        return format_count(count)
    return _with_suffix(count, 1024, _BINARY_SUFFIXES)


def format_count(count: int) -> str:
    """Return the canonical decimal form of a count such as pods: `256`; 2000 is `2k`, as in Kubernetes."""
    return _with_suffix(count, 1000, _DECIMAL_SUFFIXES)


def values_equal(left: str, right: str) -> bool:
    """Tell whether two spellings are the same amount; text that is no quantity equals only itself."""
    if left == right:
        return True
    try:
        return parse_quantity(left) == parse_quantity(right)
    except QuantityError:
        return False


def _scale(suffix: str, exponent: str | None) -> tuple[int, int]:
    if suffix in _BINARY_EXPONENTS:
        return 2 ** _BINARY_EXPONENTS[suffix], 1
    power = _DECIMAL_EXPONENTS[suffix]
    if exponent is not None:
        power = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(exponent)))
    return (10**power, 1) if power >= 0 else (1, 10**-power)


def _divided_up(numerator: int, denominator: int) -> int:
    """Divide and round away from zero."""
    magnitude = -(-abs(numerator) // denominator)
    return -magnitude if numerator < 0 else magnitude


def _bounded(number: int) -> int:
    if not -MAX_INT64 <= number <= MAX_INT64:
        raise QuantityError("must not be more than 2^63-1")
    return number


def _with_suffix(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while number and step + 1 < len(suffixes) and number % base == 0:
        number //= base
        step += 1
    return f"{number}{suffixes[step]}"
