"""Who wins when somebody else keeps changing what we wrote.

A field is taken back at most once in ten minutes; the third time within an hour it is ceded: left to the other writer
until its value is right again or the agent restarts. A first write is no taking back, and neither is a change of our
own mind: only a field that was seen with our value and then got another one has been changed by somebody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from common.quantity import values_equal
from controller.nodes.model import Instant, LiveNode

PAUSE_SECONDS = 600.0
WINDOW_SECONDS = 3600.0
TAKE_BACKS = 2
"""Times within the window a field is taken back; the next change cedes it."""

CONDITION_TYPE = "FieldConflict"
CONDITION_REASON = "OtherWriter"
_PREFIX = "Another writer keeps changing these fields, so they are left to it: "


@dataclass(frozen=True, slots=True)
class FieldMemory:
    """What is remembered about one Node's fields between plans.

    `confirmed` holds, per field we asserted, the value seen live after our write (None: seen absent). `taken_back`
    holds monotonic times. `conditions` holds what was seen live of our conditions, `conditions_at` when they were last
    asserted against somebody.
    """

    confirmed: Mapping[str, str | None] = field(default_factory=dict)
    taken_back: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ceded: frozenset[str] = frozenset()
    conditions: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    conditions_at: float = float("-inf")

    def forget_conflicts(self) -> "FieldMemory":
        """A new run of the agent asserts everything again."""
        return replace(self, taken_back={}, ceded=frozenset())


class Verdict(Enum):
    """What to do about one field."""

    FINE = "fine"
    """Live and wanted agree."""
    ASSERT = "assert"
    """Write it."""
    TAKE_BACK = "take back"
    """Write it, and remember that somebody had changed it."""
    WAIT = "wait"
    """Somebody changed it again too soon; write it later."""
    CEDE = "cede"
    """Leave it to the other writer."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on one field; `wait_seconds` is the pause that is left when it is WAIT."""

    verdict: Verdict
    wait_seconds: float = 0.0


def judge(
    name: str,
    wanted: str | None,
    live: str | None,
    memory: FieldMemory,
    now: Instant,
) -> Judgement:
    """Decide about the field `name`, whose value should be `wanted` and is `live` (None: absent)."""
    if same_value(name, wanted, live):
        return Judgement(Verdict.FINE)
    if name in memory.ceded:
        return Judgement(Verdict.CEDE)
    if name not in memory.confirmed or same_value(name, memory.confirmed[name], live):
        return Judgement(Verdict.ASSERT)
    times = _recent(memory.taken_back.get(name, ()), now)
    if len(times) >= TAKE_BACKS:
        return Judgement(Verdict.CEDE)
    if times and now.monotonic - times[-1] < PAUSE_SECONDS:
        return Judgement(Verdict.WAIT, times[-1] + PAUSE_SECONDS - now.monotonic)
    return Judgement(Verdict.TAKE_BACK)


def remember(
    memory: FieldMemory,
    judgements: Mapping[str, Judgement],
    wanted: Mapping[str, str | None],
    live: LiveNode,
    now: Instant,
    *,
    written: frozenset[str],
) -> FieldMemory:
    """The memory after a plan with these judgements; `live` is the Node after it, `written` the fields that were sent.

    A field is confirmed when it is seen as wanted. One that was sent and yet is not (an admission webhook changes it,
    or somebody was quicker) counts as confirmed and lost. A plan that judged nothing leaves the memory as it is.
    """
    if not judgements:
        return memory
    values = dict(live.fields())
    confirmed = {name: value for name, value in memory.confirmed.items() if name in wanted}
    taken_back = {name: recent for name, times in memory.taken_back.items() if (recent := _recent(times, now))}
    ceded = set()
    for name, judgement in judgements.items():
        in_place = same_value(name, wanted[name], values.get(name))
        if in_place:
            confirmed[name] = values.get(name)
        elif judgement.verdict is Verdict.CEDE:
            ceded.add(name)
        elif name in written:
            confirmed[name] = wanted[name]
        if name in written and (judgement.verdict is Verdict.TAKE_BACK or not in_place):
            taken_back[name] = (*taken_back.get(name, ()), now.monotonic)
    return replace(memory, confirmed=confirmed, taken_back=taken_back, ceded=frozenset(ceded))


def conflict_message(ceded: frozenset[str]) -> str:
    """The message of the condition; `ceded_fields` reads it back, so that a restart cedes the same fields."""
    return _PREFIX + ", ".join(sorted(ceded))


def ceded_fields(live: LiveNode | None) -> frozenset[str]:
    """Fields that the live condition says are ceded."""
    condition = live.condition(CONDITION_TYPE) if live else None
    if condition is None or condition.status != "True" or not condition.message.startswith(_PREFIX):
        return frozenset()
    return frozenset(condition.message.removeprefix(_PREFIX).split(", "))


def _recent(times: tuple[float, ...], now: Instant) -> tuple[float, ...]:
    return tuple(at for at in times if now.monotonic - at < WINDOW_SECONDS)


def same_value(name: str, left: str | None, right: str | None) -> bool:
    """Whether two values of a field agree; the API server keeps spellings, so amounts are compared as numbers."""
    if left is None or right is None:
        return left is right
    if name.startswith(("capacity:", "allocatable:")):
        return values_equal(left, right)
    return left == right
