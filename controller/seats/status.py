"""The status a set is to have: its phase, our conditions, and what is known of its VM.

Why this exists: the status is what people see, and what whoever follows a crash goes on from. It is written only when
it differs from what stands there.
"""

from controller.seats.model import (
    MISSING_CONDITION,
    RELEASED_CONDITION,
    Agent,
    Condition,
    Phase,
    Pod,
    Reason,
    Situation,
)
from controller.seats.steps import Do, Status, Step

_LONGEST_MESSAGE = 1000
_SEAT = {Phase.SUSPENDED: "True", Phase.SUSPENDING: "Unknown", Phase.WAKING: "Unknown"}
"""Whether the seat is given back, by phase; on its way counts as unknown."""


def main_pod(s: Situation) -> Pod | None:
    """Return the pod of the main pod's name, as it was read or else as our copy has it."""
    if s.pod_read is not None:
        return s.pod_read.pod
    return next((pod for pod in s.pods if pod.name == s.cocoon_set.pod_name), None)


def status_steps(
    s: Situation, phase: Phase, reason: Reason, message: str, *, keeps_seat: bool = False
) -> tuple[Step, ...]:
    """Return the step that writes this status; none when it stands there already."""
    cs, said = s.cocoon_set, message[:_LONGEST_MESSAGE]
    seat = "False" if keeps_seat else _SEAT.get(phase, "False")
    conditions = [Condition(RELEASED_CONDITION, seat, reason.value, said)]
    if reason is Reason.SNAPSHOT_MISSING:
        conditions.append(Condition(MISSING_CONDITION, "True", "NotInRegistry", said))
    elif cs.condition(MISSING_CONDITION) is not None:
        conditions.append(Condition(MISSING_CONDITION, "False", "NotMissing"))
    wanted = Status(phase, tuple(conditions), _agents(s, phase))
    is_said = all(cs.condition(each.type) == each for each in conditions)
    if is_said and (cs.phase, cs.observed_generation, cs.agents) == (phase, cs.generation, wanted.agents):
        return ()
    return (Step(Do.STATUS, said, status=wanted),)


def _agents(s: Situation, phase: Phase) -> tuple[Agent, ...]:
    """What is known of the VM; nothing while it comes up, or each change of its pod would be a write."""
    main = main_pod(s)
    if phase in (Phase.WAKING, Phase.PENDING) or main is None or main.terminating or main.set_uid != s.cocoon_set.uid:
        return ()
    return (Agent(main.name, main.vm_name, main.vm_id, main.ip, main.phase),)
