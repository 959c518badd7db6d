"""The decision table: what happens to an owner's snapshots on a node, the same for seen and unseen deletions.

Why this exists: two mistakes cannot be undone, removing a snapshot that somebody still needs and keeping one for ever.
So there is one function, read from top to bottom like the table it implements; the first row that fits decides.

Whatever ends a promise or removes something is decided twice: from our copies the answer is CONFIRM at most, and only
with uncached reads of pod and set in the question it becomes RELEASE or PURGE. A caller cannot purge on cached facts.
"""

from collections.abc import Callable

from common.snapshot_words import Owner, PurgeReason, ReleaseReason, RetainReason
from controller.deletion.model import Action, Decision, LivePod, Question, RetentionFacts, SetStanding
from controller.deletion.words import claims, is_disrupted, is_held, is_kept_by_flag, is_same_name, is_touchable

DISRUPTION_TTL_SECONDS = 24 * 3600.0
# Renewed from half of its time on, so that a controller that is away for hours loses nothing.
RENEW_BELOW_SECONDS = DISRUPTION_TTL_SECONDS / 2


def decide(question: Question) -> Decision:
    """Return what to do; rows are numbered as in the table."""
    for row in _ROWS:
        decision = row(question)
        if decision is not None:
            return decision
    return Decision(13, Action.NOTHING, "nothing is known that would keep or remove it: it is unclaimed")


def _lists(question: Question) -> Decision | None:
    if not question.pods_synced:
        return Decision(1, Action.WAIT, "the pods have not been listed yet")
    return None


def _not_ours(question: Question) -> Decision | None:
    if not question.node:
        return Decision(2, Action.NOTHING, "the pod was never scheduled")
    if is_kept_by_flag(question) or is_touchable(question.owner, question.trusted_prefixes):
        return None
    if not question.owner.managed:
        return Decision(2, Action.NOTHING, "the VM is not managed")
    return Decision(2, Action.NOTHING, "the VM name is not the pod's own")


def _claimed_here(question: Question) -> Decision | None:
    for pod in _claimants(question):
        if pod.node == question.node:
            return Decision(3, Action.NOTHING, f"pod {pod.namespace}/{pod.name} on this node claims the VM")
    return None


def _claimed_elsewhere(question: Question) -> Decision | None:
    """Only the next pod of the same namespace and name counts: an annotation must not end others' promises."""
    pod = next((pod for pod in _claimants(question) if pod.node and is_same_name(pod, question.owner)), None)
    if pod is None or _kept_by_person(question):
        return None
    if pod.restores and pod.vm_live:
        why = f"the VM was woken on node {pod.node}; this copy is stale"
        return _remove(question, 4, why, PurgeReason.WOKEN_ELSEWHERE, ReleaseReason.WOKEN_ELSEWHERE)
    if question.retention is None:
        return Decision(5, Action.NOTHING, f"its next pod is bound to node {pod.node}: it is unclaimed")
    why = f"its next pod is bound to node {pod.node}"
    return _confirmed_pod(question, Decision(5, Action.RELEASE, why, release=ReleaseReason.SUPERSEDED))


def _retained_without_set(question: Question) -> Decision | None:
    if question.retention is None or _kept_by_person(question):
        return None
    if unread := _set_unread(question):
        return unread
    if question.cocoon_set.standing in (SetStanding.GONE, SetStanding.MISSING):
        why = f"its set {question.owner.set_name} is gone"
        return _remove(question, 6, why, PurgeReason.SET_DELETED, ReleaseReason.SET_DELETED)
    return None


def _retained_but_suspended_elsewhere(question: Question) -> Decision | None:
    """The stash tells of the set's main VM only; copies of its other VMs are not judged by it."""
    stash = question.cocoon_set.hibernated_on_node
    if question.retention is None or _kept_by_person(question) or not _is_main(question.owner):
        return None
    if question.cocoon_set.suspended and stash and stash != question.node:
        why = f"its set is suspended and names node {stash}"
        return _remove(question, 7, why, PurgeReason.WOKEN_ELSEWHERE, ReleaseReason.WOKEN_ELSEWHERE)
    return None


def _kept_by_flag(question: Question) -> Decision | None:
    if not is_kept_by_flag(question):
        return None
    return _retain_for_good(question, 8, "the pod carried the keep flag")


def _suspended_here(question: Question) -> Decision | None:
    if _kept_by_person(question):
        return None
    if (unread := _set_unread(question)) and not is_disrupted(question):
        return unread
    if question.cocoon_set.suspended and question.cocoon_set.hibernated_on_node == question.node:
        return _retain_for_good(question, 9, "its set is suspended and names this node; the flag was lost")
    return None


def _disrupted(question: Question) -> Decision | None:
    if not is_disrupted(question):
        return None
    why = "the pod was evicted or preempted"
    promise = Decision(10, Action.RETAIN, why, retain=RetainReason.DISRUPTION, ttl_seconds=DISRUPTION_TTL_SECONDS)
    if question.retention is None or not question.retention.whole:
        return promise
    left = question.retention.expires_in_seconds
    if left is None or left >= RENEW_BELOW_SECONDS:
        return Decision(10, Action.NOTHING, f"{why}; it is kept already")
    if not question.namesake.confirmed:
        return Decision(10, Action.CONFIRM, f"{why}; whether to go on keeping it depends on its next pod")
    if unread := _set_unread(question):
        return unread
    if _is_awaited(question):
        return promise
    return Decision(10, Action.NOTHING, f"{why}; nobody waits for it any more, the promise runs out")


def _kept_on_request(question: Question) -> Decision | None:
    if _kept_by_person(question):
        return Decision(13, Action.NOTHING, "a person asked to keep it; a person or its expiry ends that")
    return None


def _torn_down(question: Question) -> Decision | None:
    if question.seen is None:
        return None
    return _remove(question, 11, "the pod was deleted and nothing asked to keep its snapshots", PurgeReason.TEARDOWN)


def _set_deleted(question: Question) -> Decision | None:
    facts = question.cocoon_set
    if facts.standing in (SetStanding.GONE, SetStanding.MISSING):
        return _remove(question, 12, f"its set {question.owner.set_name} is gone", PurgeReason.SET_DELETED)
    if facts.standing is SetStanding.EXISTS and facts.deleting:
        return _remove(question, 12, f"its set {question.owner.set_name} is being deleted", PurgeReason.SET_DELETED)
    return None


_ROWS: tuple[Callable[[Question], Decision | None], ...] = (
    _lists,
    _not_ours,
    _claimed_here,
    _claimed_elsewhere,
    _retained_without_set,
    _retained_but_suspended_elsewhere,
    _kept_by_flag,
    _suspended_here,
    _disrupted,
    _kept_on_request,
    _torn_down,
    _set_deleted,
)


def _claimants(question: Question) -> tuple[LivePod, ...]:
    """The live pods that claim the VM; an uncached read of the namesake goes before our copy of it."""
    found = tuple(pod for pod in question.claimants if claims(pod, question.owner))
    if not question.namesake.confirmed:
        return found
    others = tuple(pod for pod in found if not is_same_name(pod, question.owner))
    pod = question.namesake.pod
    return (*others, pod) if pod is not None and claims(pod, question.owner) else others


def _is_main(owner: Owner) -> bool:
    """Whether the pod is its set's main one; composed from the set's name, never taken apart from the pod's."""
    return bool(owner.set_name) and owner.pod_name == f"{owner.set_name}-0"


def _kept_by_person(question: Question) -> bool:
    return question.retention is not None and question.retention.reason is RetainReason.REQUESTED


def _set_unread(question: Question) -> Decision | None:
    if question.cocoon_set.standing is SetStanding.UNREAD:
        return Decision(1, Action.WAIT, f"its set {question.owner.set_name} could not be read")
    return None


def _is_awaited(question: Question) -> bool:
    """Whether no pod of that name is bound, and its set exists or such a pod is pending."""
    pod = question.namesake.pod
    if pod is not None and pod.node:
        return False
    return pod is not None or question.cocoon_set.standing is SetStanding.EXISTS


def _retain_for_good(question: Question, row: int, why: str) -> Decision:
    retention = question.retention
    if retention == RetentionFacts(RetainReason.SEAT_RELEASE):
        return Decision(row, Action.NOTHING, f"{why}; it is kept already")
    return Decision(row, Action.RETAIN, why, retain=RetainReason.SEAT_RELEASE)


def _remove(
    question: Question, row: int, why: str, purge: PurgeReason, release: ReleaseReason | None = None
) -> Decision:
    """Purge, after the promise was ended if there is one; what is not ours to remove is only released."""
    if question.retention is None:
        release = None
    if not is_touchable(question.owner, question.trusted_prefixes):
        action = Action.RELEASE if release else Action.NOTHING
        decision = Decision(row, action, f"{why}; it is not ours to remove", release=release)
    else:
        decision = Decision(row, Action.PURGE, why, release=release, purge=purge, unseen=question.seen is None)
    if decision.action is Action.NOTHING:
        return decision
    return _set_unread(question) or _confirmed_pod(question, _confirmed_set(question, decision))


def _confirmed_set(question: Question, decision: Decision) -> Decision:
    if question.cocoon_set.confirmed and question.cocoon_set.standing is not SetStanding.MISSING:
        return decision
    return Decision(decision.row, Action.CONFIRM, f"{decision.why}; the set is to be read uncached first")


def _confirmed_pod(question: Question, decision: Decision) -> Decision:
    """Ending a promise and removing wait while a pod of that name, whatever its UID, is unbound or bound here.

    They wait for the watch too: who else claims the VM is only in our copy.
    """
    if not question.pods_current:
        return Decision(1, Action.WAIT, f"{decision.why}; but the list or watch of pods fails at the moment")
    if not question.namesake.confirmed:
        return Decision(decision.row, Action.CONFIRM, f"{decision.why}; pod and set are to be read uncached first")
    if is_held(question.node, question.namesake):
        why = f"{decision.why}; but a pod of that name is bound to this node or not bound yet"
        return Decision(decision.row, Action.WAIT, why)
    return decision
