"""The words of the decision table as predicates: claimed, ours to remove, held, flagged, disrupted.

Why this exists: the table, the copy of the pods and whoever carries decisions out must mean the same by them. Each is
a pure function of what it is given.
"""

from common.snapshot_words import Owner, RetainReason
from common.vm_names import is_own_vm_name
from controller.deletion.model import LivePod, NamesakeFacts, Question, SeenDeletion


def is_true(value: object) -> bool:
    """Whether an annotation says yes. `"true"` is the only true: not `"True"`, not `"1"`, not a boolean."""
    return isinstance(value, str) and value == "true"


def claims(pod: LivePod, owner: Owner) -> bool:
    """Whether a live pod claims the owner's VM: its VM name is exactly that name."""
    return pod.vm_name == owner.vm_name


def is_same_name(pod: LivePod, owner: Owner) -> bool:
    """Whether a pod has the owner's namespace and name, be it the same pod or one after it."""
    return (pod.namespace, pod.name) == (owner.namespace, owner.pod_name)


def is_touchable(owner: Owner, trusted_prefixes: tuple[str, ...]) -> bool:
    """Whether the owner's snapshots may ever be removed: its VM's life is ours, and its VM name is its own."""
    return owner.managed and is_own_vm_name(owner.namespace, owner.pod_name, owner.vm_name, trusted_prefixes)


def is_held(node: str, namesake: NamesakeFacts) -> bool:
    """Whether a pod of that namespace and name, whatever its UID, is unbound or bound to this node, or nobody knows."""
    return not namesake.confirmed or (namesake.pod is not None and namesake.pod.node in ("", node))


def is_kept_by_flag(question: Question) -> bool:
    """Whether the keep flag holds: on the last version seen, or in the promise of a copy that is found again."""
    promised = question.retention is not None and question.retention.reason is RetainReason.SEAT_RELEASE
    return promised or (question.seen is not None and question.seen.keep)


def is_disrupted(question: Question) -> bool:
    """Whether the pod was taken away by the cluster and not by its owner."""
    promised = question.retention is not None and question.retention.reason is RetainReason.DISRUPTION
    return promised or (question.seen is not None and question.seen.disrupted)


def last_version(
    before: SeenDeletion | None, *, live_seen: bool, keep: bool, disrupted: bool, terminating: bool
) -> SeenDeletion:
    """Return what a pod says at its newest version, the versions before it taken into account.

    The flag's last value counts. A disruption counts on the last version without deletion timestamp, because the
    condition may be added after an owner's delete; when no such version was seen, on any version. `before` is the
    result for the version before, None at the first; `live_seen` tells whether that one or one before it had no
    deletion timestamp.
    """
    if not terminating or before is None:
        return SeenDeletion(keep, disrupted)
    return SeenDeletion(keep, before.disrupted or (disrupted and not live_seen))
