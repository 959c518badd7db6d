"""The state machine of a seat as a table: every sentence of the rules for suspending and waking is a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.seats.model import (
    MISSING_CONDITION,
    CocoonSet,
    Copies,
    Lifecycle,
    Phase,
    PodRead,
    Reason,
    Situation,
)
from controller.seats.plan import GATE_SECONDS, gate_problem, is_ours, plan
from controller.seats.steps import Do, Plan, Step
from tests.controller.seats.situations import (
    ABSENT,
    NOBODY,
    ON_A,
    PRESENT,
    UNKNOWN,
    VM,
    a_pod,
    a_set,
    asleep,
    hibernated,
    no_pod,
    told,
)

RELEASE = [Do.STASH, Do.FLAG, Do.DELETE, Do.STATUS]


def kinds(decided: Plan) -> list[Do]:
    return [step.do for step in decided.steps]


def status(decided: Plan) -> tuple[Phase, str] | None:
    """Phase and reason of the last status a plan writes."""
    found = [step.status for step in decided.steps if step.status is not None]
    return (found[-1].phase, found[-1].conditions[0].reason) if found else None


def only(decided: Plan, do: Do) -> Step:
    (step,) = [each for each in decided.steps if each.do is do]
    return step


SUSPENDING = asleep(Phase.SUSPENDING, Reason.HIBERNATING)
WAITING = Situation(SUSPENDING, (hibernated(),))

# What is known, and the steps that follow.
SUSPEND_TABLE = [
    ("a running VM is told to hibernate, after the phase says so",
     Situation(asleep(Phase.RUNNING, None), (a_pod(),)), [Do.STATUS, Do.HIBERNATE]),
    ("it is told once", Situation(SUSPENDING, (a_pod(hibernates=True),)), [Do.STATUS]),
    ("a new generation is told, so that the runtime can follow it",
     Situation(SUSPENDING, (hibernated(stamped_generation=2),)), [Do.STATUS, Do.HIBERNATE]),
    ("a VM that hibernates holds the gate",
     Situation(SUSPENDING, (hibernated(lifecycle=Lifecycle.HIBERNATING),)), [Do.STATUS]),
    ("an older observed generation holds the gate", Situation(SUSPENDING, (hibernated(observed_generation=2),)),
     [Do.STATUS]),
    ("no observed generation holds the gate", Situation(SUSPENDING, (hibernated(observed_generation=-1),)),
     [Do.STATUS]),
    ("hibernated: the registry is asked", WAITING, [Do.ASK_REGISTRY]),
    ("a missing manifest holds the gate", told(WAITING, ABSENT), [Do.STATUS]),
    ("a registry error is not absent, and holds it too", told(WAITING, UNKNOWN), [Do.STATUS]),
    ("before the first delete the set is read uncached", told(WAITING, PRESENT), [Do.READ_SET]),
    ("then stash, flag, delete, phase, in this order", told(WAITING, PRESENT, set_read=True), RELEASE),
    ("a stash that is written already is not written again",
     told(Situation(replace(SUSPENDING, stash="a"), (hibernated(),)), PRESENT, set_read=True), RELEASE[1:]),
    ("a stash of an earlier sleep is replaced",
     told(Situation(replace(SUSPENDING, stash="b"), (hibernated(),)), PRESENT, set_read=True), RELEASE),
    ("a terminal pod neither holds the gate nor is deleted",
     Situation(SUSPENDING, (hibernated(ended=True),), pod_read=PodRead(hibernated(ended=True))), [Do.STATUS]),
    ("a pod that is terminating is left alone",
     Situation(SUSPENDING, (hibernated(terminating=True),), pod_read=PodRead(hibernated(terminating=True))),
     [Do.STATUS]),
    ("without a pod in our copy the API is asked", Situation(SUSPENDING), [Do.READ_POD]),
    ("a set without pods is suspended at once", Situation(SUSPENDING, pod_read=no_pod()), [Do.STATUS]),
    ("a suspended set without pods is asked nothing", Situation(asleep(stash="a")), []),
    ("a pod never bound has no VM: it must not start",
     Situation(SUSPENDING, (a_pod(node="", vm_id="", running=False),), set_read=True), [Do.DELETE_UNBOUND, Do.STATUS]),
    ("and the set is read before that delete too",
     Situation(SUSPENDING, (a_pod(node="", vm_id="", running=False),)), [Do.READ_SET]),
    ("a pod that a CocoonHibernation targets is left to it and counts as waiting",
     Situation(asleep(Phase.RUNNING, None), (a_pod(left_to_hibernation=True),)), [Do.STATUS]),
    ("also when it hibernated", told(Situation(SUSPENDING, (hibernated(left_to_hibernation=True),)), PRESENT,
                                     set_read=True), [Do.STATUS]),
    ("while it is not known what they target, nothing is done",
     told(WAITING, PRESENT, set_read=True, hibernations_known=False), []),
    ("a VM name that is not the pod's own is never released", Situation(SUSPENDING, (hibernated(vm_name="vk-x"),)),
     [Do.STATUS]),
    ("without a registry it is an error on the set, and nothing else is done",
     Situation(asleep(Phase.RUNNING, None), (a_pod(),), registry_configured=False), [Do.STATUS, Do.TELL]),
    ("even if the VM sleeps", told(WAITING, PRESENT, set_read=True, registry_configured=False), [Do.STATUS, Do.TELL]),
    ("our copy of a pod that was just deleted is not believed",
     Situation(asleep(stash="a"), (hibernated(),)), [Do.READ_POD]),
    ("a policy edited to retain before anything was deleted keeps the seat",
     told(Situation(replace(SUSPENDING, releases=False), (hibernated(),)), PRESENT, set_read=True), [Do.STATUS]),
    ("edited after the stash was written it changes nothing",
     told(Situation(replace(SUSPENDING, releases=False, stash="a"), (hibernated(),)), PRESENT, set_read=True),
     RELEASE[1:]),
    ("a VM name that is an older set's is nobody else's to touch",
     told(WAITING, PRESENT, set_read=True, older_namesake="a/b"), [Do.STATUS, Do.TELL]),
    ("a set that is being deleted is left to the garbage collector",
     told(Situation(replace(SUSPENDING, deleting=True), (hibernated(),)), PRESENT, set_read=True), []),
    ("a failed hibernation is told and waited for",
     Situation(SUSPENDING, (hibernated(lifecycle=Lifecycle.FAILED),)), [Do.STATUS, Do.TELL]),
]  # fmt: skip

SLEEPING = a_set(Phase.SUSPENDED, Reason.SUSPENDED, stash="a")
GONE = Situation(SLEEPING, pod_read=no_pod())
NEVER = Situation(a_set(Phase.NONE), pod_read=no_pod())
RESTORING = a_set(Phase.WAKING, Reason.RESTORING, stash="a")

WAKE_TABLE = [
    ("without a pod in our copy the registry is asked", Situation(SLEEPING), [Do.ASK_REGISTRY]),
    ("absent: whether there really is no pod is read first", told(Situation(SLEEPING), ABSENT), [Do.READ_POD]),
    ("and one that is there is no lost snapshot",
     told(Situation(RESTORING, pod_read=PodRead(a_pod(restores=True))), ABSENT),
     [Do.CLEAR_STASH, Do.STATUS, Do.DROP_TAG, Do.STATUS]),
    ("an error: told and tried again, never booted", told(GONE, UNKNOWN), [Do.STATUS, Do.TELL]),
    ("the phase is written before the pod is created", told(GONE, PRESENT, set_read=True), [Do.STATUS, Do.CREATE]),
    ("absent: the agents are asked", told(NEVER, ABSENT), [Do.ASK_AGENTS]),
    ("not before all agents were tried", told(NEVER, ABSENT, copies=Copies(complete=False)), []),
    ("absent everywhere and no stash: an ordinary first boot", told(NEVER, ABSENT, copies=NOBODY, set_read=True),
     [Do.STATUS, Do.CREATE]),
    ("absent with a stash: lost", told(GONE, ABSENT, copies=NOBODY), [Do.STATUS, Do.TELL]),
    ("absent with a copy on a host: hidden, and the copy is kept", told(NEVER, ABSENT, copies=ON_A),
     [Do.STATUS, Do.TELL, Do.KEEP_COPIES]),
    ("until a person gives it up",
     told(Situation(replace(SLEEPING, discard=True), pod_read=no_pod()), ABSENT, copies=ON_A, set_read=True),
     [Do.STATUS, Do.CREATE]),
    ("a word to give it up is no reason to boot over a registry that does not answer",
     told(Situation(replace(SLEEPING, discard=True), pod_read=no_pod()), UNKNOWN), [Do.STATUS, Do.TELL]),
    ("nor over a snapshot that is there: it is restored",
     told(Situation(replace(SLEEPING, discard=True), pod_read=no_pod()), PRESENT), [Do.STATUS, Do.CREATE]),
    ("a pod that is terminating is waited for", Situation(SLEEPING, (hibernated(terminating=True),)), [Do.STATUS]),
    ("also one that somebody deleted", Situation(a_set(), (a_pod(terminating=True),)), []),
    ("a tag that a CocoonHibernation may be writing is not deleted",
     Situation(RESTORING, (a_pod(restores=True, left_to_hibernation=True),)), [Do.CLEAR_STASH, Do.STATUS]),
    ("a pod that still sleeps may be deleted already: it is read", Situation(SLEEPING, (hibernated(),)),
     [Do.READ_POD]),
    ("there still: it wakes where it is", Situation(SLEEPING, (hibernated(),), pod_read=PodRead(hibernated())),
     [Do.STATUS, Do.RESUME]),
    ("gone: the wake begins", Situation(SLEEPING, (hibernated(),), pod_read=no_pod()), [Do.ASK_REGISTRY]),
    ("a pod left to a CocoonHibernation is not woken by us",
     Situation(SLEEPING, (hibernated(left_to_hibernation=True),)), []),
    ("a pod that somebody else put to sleep is not woken by us",
     Situation(a_set(Phase.RUNNING, Reason.RUNNING), (hibernated(),)), []),
    ("a pod that comes up is waited for", Situation(RESTORING, (a_pod(restores=True, vm_id=""),)), [Do.STATUS]),
    ("an id alone is no live VM", Situation(RESTORING, (a_pod(restores=True, running=False),)), [Do.STATUS]),
    ("no capacity is told",
     Situation(RESTORING, (a_pod(restores=True, node="", vm_id="", running=False, unschedulable="0/2 nodes"),)),
     [Do.STATUS, Do.TELL]),
    ("live: stash cleared and phase written, then the tag deleted", Situation(RESTORING, (a_pod(restores=True),)),
     [Do.CLEAR_STASH, Do.STATUS, Do.DROP_TAG, Do.STATUS]),
    ("after a crash with the stash cleared it goes on",
     Situation(replace(RESTORING, stash=""), (a_pod(restores=True),)), [Do.STATUS, Do.DROP_TAG, Do.STATUS]),
    ("after a crash before the tag is deleted it goes on",
     Situation(a_set(Phase.RUNNING, Reason.DROPPING_SNAPSHOT), (a_pod(restores=True),)),
     [Do.STATUS, Do.DROP_TAG, Do.STATUS]),
    ("a VM that woke where it slept keeps the tag: it may be all there is of it",
     Situation(a_set(Phase.WAKING, Reason.RESUMING, stash="a"), (a_pod(restores=True),)), [Do.CLEAR_STASH, Do.STATUS]),
    ("and is not live while its runtime says that it sleeps",
     Situation(a_set(Phase.WAKING, Reason.RESUMING), (a_pod(lifecycle=Lifecycle.HIBERNATING),)), [Do.STATUS]),
    ("a terminal pod is left to a person", Situation(RESTORING, (a_pod(ended=True),)), [Do.STATUS, Do.TELL]),
    ("a pod of somebody else is left alone", Situation(RESTORING, (a_pod(set_uid="other"),)), [Do.STATUS, Do.TELL]),
    ("a policy edited while it slept changes nothing",
     told(Situation(replace(SLEEPING, releases=False), pod_read=no_pod()), PRESENT, set_read=True),
     [Do.STATUS, Do.CREATE]),
    ("nor while it never ran",
     told(Situation(a_set(Phase.SUSPENDED, Reason.SUSPENDED, releases=False), pod_read=no_pod()), PRESENT,
          set_read=True), [Do.STATUS, Do.CREATE]),
    ("a set that sub-agents were added to wakes by its stash",
     told(Situation(replace(SLEEPING, main_only=False), pod_read=no_pod()), PRESENT, set_read=True),
     [Do.STATUS, Do.CREATE]),
    ("the snapshot of an older set of that VM name is not restored", told(GONE, PRESENT, set_read=True,
                                                                          older_namesake="a/b"), [Do.STATUS, Do.TELL]),
    ("without a registry nothing is created", told(GONE, registry_configured=False), [Do.STATUS, Do.TELL]),
    ("a running VM without a registry is left alone", Situation(a_set(), (a_pod(),), registry_configured=False), []),
    ("a running set is adopted by its status", Situation(a_set(Phase.NONE), (a_pod(),)), [Do.STATUS]),
]  # fmt: skip


@pytest.mark.parametrize(("why", "situation", "steps"), SUSPEND_TABLE, ids=[row[0] for row in SUSPEND_TABLE])
def test_suspend(why: str, situation: Situation, steps: list[Do]) -> None:
    assert kinds(plan(situation)) == steps, why


@pytest.mark.parametrize(("why", "situation", "steps"), WAKE_TABLE, ids=[row[0] for row in WAKE_TABLE])
def test_wake(why: str, situation: Situation, steps: list[Do]) -> None:
    assert kinds(plan(situation)) == steps, why


def test_every_step_has_a_reason() -> None:
    for _, situation, _ in SUSPEND_TABLE + WAKE_TABLE:
        assert all(step.why for step in plan(situation).steps)


PHASES = [
    (told(WAITING, PRESENT, set_read=True), Phase.SUSPENDED, Reason.SUSPENDED),
    (Situation(asleep(Phase.RUNNING, None), (a_pod(),)), Phase.SUSPENDING, Reason.HIBERNATING),
    (told(GONE, PRESENT, set_read=True), Phase.WAKING, Reason.RESTORING),
    (told(GONE, ABSENT, copies=NOBODY), Phase.WAKING, Reason.SNAPSHOT_MISSING),
    (told(GONE, UNKNOWN), Phase.WAKING, Reason.REGISTRY_UNAVAILABLE),
    (told(NEVER, ABSENT, copies=NOBODY, set_read=True), Phase.PENDING, Reason.BOOTING),
    (Situation(RESTORING, (a_pod(restores=True),)), Phase.RUNNING, Reason.RUNNING),
    (Situation(RESTORING, (a_pod(ended=True),)), Phase.FAILED, Reason.POD_ENDED),
]


@pytest.mark.parametrize(("situation", "phase", "reason"), PHASES)
def test_phase_and_reason(situation: Situation, phase: Phase, reason: Reason) -> None:
    assert status(plan(situation)) == (phase, reason.value)


def test_a_wake_prefers_the_node_in_the_stash_and_a_boot_none() -> None:
    create = only(plan(told(GONE, PRESENT, set_read=True)), Do.CREATE)
    assert (create.restores, create.node) == (True, "a")
    given_up = Situation(replace(SLEEPING, discard=True), pod_read=no_pod())
    create = only(plan(told(given_up, ABSENT, copies=NOBODY, set_read=True)), Do.CREATE)
    assert (create.restores, create.node) == (False, "")


@pytest.mark.parametrize(("node", "placement"), [("a", "hint-node"), ("b", "pool")])
def test_where_a_wake_landed_is_counted(node: str, placement: str) -> None:
    assert only(plan(Situation(RESTORING, (a_pod(restores=True, node=node),))), Do.CLEAR_STASH).placement == placement


def test_a_missing_snapshot_is_a_condition_of_its_own_until_it_is_over() -> None:
    step = only(plan(told(GONE, ABSENT, copies=NOBODY)), Do.STATUS)
    assert step.status is not None
    missing = step.status.conditions
    assert [(each.type, each.status) for each in missing[1:]] == [(MISSING_CONDITION, "True")]
    found = replace(SLEEPING, conditions=missing)
    step = only(plan(told(Situation(found, pod_read=no_pod()), PRESENT, set_read=True)), Do.STATUS)
    assert step.status is not None
    assert [(each.type, each.status) for each in step.status.conditions[1:]] == [(MISSING_CONDITION, "False")]


def test_what_stands_in_the_status_is_not_written_again() -> None:
    first = plan(told(WAITING, ABSENT))
    written = only(first, Do.STATUS).status
    assert written is not None
    after = replace(SUSPENDING, phase=written.phase, conditions=written.conditions, agents=written.agents)
    again = plan(told(Situation(after, (hibernated(),)), ABSENT))
    assert again == Plan((), GATE_SECONDS)


def test_a_long_message_is_written_once() -> None:
    pod = a_pod(restores=True, node="", vm_id="", running=False, unschedulable="0/2000 nodes " * 500)
    written = only(plan(Situation(RESTORING, (pod,))), Do.STATUS).status
    assert written is not None
    after = replace(RESTORING, conditions=written.conditions, agents=written.agents)
    assert plan(Situation(after, (pod,))).steps == ()


def test_the_delete_is_of_the_pod_that_passed_the_gate() -> None:
    pod = hibernated(uid="passed")
    decided = plan(told(Situation(SUSPENDING, (pod,)), PRESENT, set_read=True))
    assert only(decided, Do.FLAG).pod == only(decided, Do.DELETE).pod == pod


def test_every_pod_of_the_set_passes_the_gate_before_one_is_deleted() -> None:
    other = hibernated(name="web-1", uid="2", vm_name="vk-ns-web-1", lifecycle=Lifecycle.HIBERNATING)
    assert Do.DELETE not in kinds(plan(told(Situation(SUSPENDING, (hibernated(), other)), PRESENT, set_read=True)))
    other = replace(other, lifecycle=Lifecycle.HIBERNATED)
    both = Situation(SUSPENDING, (hibernated(), other), manifests={VM: PRESENT, other.vm_name: PRESENT}, set_read=True)
    assert kinds(plan(both)) == [Do.STASH, Do.FLAG, Do.DELETE, Do.FLAG, Do.DELETE, Do.STATUS]


@pytest.mark.parametrize(
    ("cocoon_set", "ours"),
    [
        (a_set(Phase.NONE), True),
        (a_set(releases=False), False),
        (a_set(main_only=False), False),
        (a_set(releases=False, stash="a"), True),
        (a_set(Phase.SUSPENDED, releases=False), False),
        (a_set(Phase.SUSPENDED, Reason.SUSPENDED, releases=False), True),
        (a_set(Phase.RUNNING, Reason.RUNNING, releases=False), False),
        (a_set(Phase.RUNNING, Reason.DROPPING_SNAPSHOT, releases=False), True),
    ],
)
def test_whose_business_a_set_is(cocoon_set: CocoonSet, ours: bool) -> None:
    assert is_ours(cocoon_set) is ours


def test_the_gate_tells_what_it_waits_for() -> None:
    assert "generation 2, not 3" in gate_problem(SUSPENDING, hibernated(observed_generation=2))
