"""Sets, pods and answers for tests of plans, with what a case does not mention as it usually is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller.seats.model import (
    RELEASED_CONDITION,
    CocoonSet,
    Condition,
    Copies,
    Lifecycle,
    ManifestAnswer,
    Phase,
    Pod,
    PodRead,
    Reason,
    RegistryAnswer,
    Situation,
)
from controller.seats.plan import NO_SEAT

VM = "vk-ns-web-0"
PRESENT = ManifestAnswer(RegistryAnswer.PRESENT)
ABSENT = ManifestAnswer(RegistryAnswer.ABSENT)
UNKNOWN = ManifestAnswer(RegistryAnswer.UNKNOWN, "HTTP 503")
NOBODY = Copies()
ON_A = Copies(("a",))


def a_set(phase: Phase = Phase.RUNNING, reason: Reason | None = None, **fields: Any) -> CocoonSet:  # noqa: ANN401 - any field
    """A set `ns/web` of generation 3; `reason` is that of our condition."""
    conditions = () if reason is None else (Condition(RELEASED_CONDITION, "Unknown", reason.value),)
    if reason is Reason.SUSPENDED:
        conditions = (Condition(RELEASED_CONDITION, "True", reason.value, NO_SEAT),)
    base = CocoonSet("ns", "web", "set-uid", generation=3, phase=phase, observed_generation=3, conditions=conditions)
    return replace(base, **fields)


def asleep(
    phase: Phase = Phase.SUSPENDED,
    reason: Reason | None = Reason.SUSPENDED,
    **fields: Any,  # noqa: ANN401 - any field
) -> CocoonSet:
    """A set that is to be suspended."""
    return a_set(phase, reason, **({"suspended": True} | fields))


def a_pod(**fields: Any) -> Pod:  # noqa: ANN401 - any field
    """The main pod of that set, bound to node `a`, its VM live."""
    base = Pod(
        "ns",
        "web-0",
        "pod-uid",
        set_uid="set-uid",
        resource_version="7",
        node="a",
        vm_name=VM,
        lifecycle=Lifecycle.READY,
        observed_generation=3,
        stamped_generation=3,
        vm_id="vm-1",
        phase="Running",
        running=True,
    )
    return replace(base, **fields)


def hibernated(**fields: Any) -> Pod:  # noqa: ANN401 - any field
    """The same, told to hibernate and hibernated."""
    told = {"hibernates": True, "lifecycle": Lifecycle.HIBERNATED, "vm_id": "", "running": False}
    return a_pod(**(told | fields))


def told(s: Situation, *answers: ManifestAnswer, **fields: Any) -> Situation:  # noqa: ANN401 - any field
    """The situation with the registry's answer about the main VM, and other things known."""
    manifests = {VM: answers[0]} if answers else {}
    return replace(s, manifests=manifests, **fields)


def no_pod() -> PodRead:
    """An uncached read that found no pod."""
    return PodRead(None)
