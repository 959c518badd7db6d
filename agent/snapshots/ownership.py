"""Who claims a snapshot and who may have it removed: the rules by name and UID, in one place.

Why this exists: a VM's name is no proof of anything. Whoever may create a pod can write another tenant's VM name, or
an image's, into an annotation, and two different pods can have one VM name. So a claim always protects, while removal
needs a pod whose own name makes the VM's name and who is the one recorded for the snapshot.
"""

from collections.abc import Iterable, Iterator, Mapping

from agent.snapshots.model import SnapshotFacts
from agent.snapshots.names import is_store_name, owned_names
from common.snapshot_words import Owner
from common.vm_names import is_own_vm_name


def owns_its_name(owner: Owner, trusted_prefixes: tuple[str, ...] = ()) -> bool:
    """Whether the owner's VM name is its own: made from its namespace and pod name, or with a trusted prefix."""
    return is_own_vm_name(owner.namespace, owner.pod_name, owner.vm_name, trusted_prefixes)


def is_foreign(owner: Owner, trusted_prefixes: tuple[str, ...] = ()) -> bool:
    """Whether snapshots of this owner are never purged by a controller and never collected."""
    return not owner.managed or not owns_its_name(owner, trusted_prefixes)


def claimed_names(owner: Owner) -> tuple[str, ...]:
    """Return the snapshot names an owner claims; none when its VM name is impossible."""
    return tuple(name for name in owned_names(owner.vm_name) if is_store_name(name))


class OwnerSet:
    """The owners of one sync, found by UID and by the snapshot names they claim. Never changed once made."""

    __slots__ = ("_by_snapshot_name", "by_uid")

    def __init__(self, owners: Iterable[Owner] = ()) -> None:
        """Take the owners of a sync; of several with one UID the last counts."""
        self.by_uid: dict[str, Owner] = {owner.pod_uid: owner for owner in owners}
        self._by_snapshot_name: dict[str, list[Owner]] = {}
        for owner in self.by_uid.values():
            for name in claimed_names(owner):
                self._by_snapshot_name.setdefault(name, []).append(owner)

    def __len__(self) -> int:
        return len(self.by_uid)

    def __iter__(self) -> Iterator[Owner]:
        return iter(self.by_uid.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnerSet) and self.by_uid == other.by_uid

    __hash__ = None  # type: ignore[assignment] # equal by contents, and never a key

    def claimants(self, snapshot_name: str) -> tuple[Owner, ...]:
        """Return the owners that claim a snapshot by its name."""
        return tuple(self._by_snapshot_name.get(snapshot_name, ()))

    def differing_names(self, other: "OwnerSet") -> set[str]:
        """Return the snapshot names for which anything about the claims differs between two sets."""
        changed: set[str] = set()
        for one, two in ((self.by_uid, other.by_uid), (other.by_uid, self.by_uid)):
            changed.update(_names_missing_from(one, two))
        return changed


def _names_missing_from(one: Mapping[str, Owner], two: Mapping[str, Owner]) -> Iterator[str]:
    for uid, owner in one.items():
        if two.get(uid) != owner:
            yield from claimed_names(owner)


def recorded_owner(
    recorded: Owner | None, claimants: tuple[Owner, ...], trusted: tuple[str, ...], *, contested: bool = False
) -> Owner | None:
    """Return the owner to record for a snapshot, given the one recorded so far and those that claim it now.

    Namespace and pod name, once recorded, never change: only another state of the same pod, or the next pod of that
    name, takes the record over. Without a record, a pod with a right to the name goes before one without; of two
    with the same right neither is recorded, now or later, because nothing tells which of them made the snapshot.
    """
    if recorded is not None:
        successors = [owner for owner in claimants if owner.same_pod_name(recorded)]
        return successors[0] if len(successors) == 1 else recorded
    if contested or is_contested(claimants, trusted):
        return None
    rightful = [owner for owner in claimants if owns_its_name(owner, trusted)]
    pods = {(owner.namespace, owner.pod_name): owner for owner in rightful or claimants}
    return next(iter(pods.values())) if len(pods) == 1 else None


def is_contested(claimants: tuple[Owner, ...], trusted: tuple[str, ...]) -> bool:
    """Whether several pods with a right to its name claim a snapshot."""
    return len({(owner.namespace, owner.pod_name) for owner in claimants if owns_its_name(owner, trusted)}) > 1


def likely_owner(before: Owner | None, claimants: tuple[Owner, ...], trusted: tuple[str, ...]) -> Owner | None:
    """Return whose a snapshot is that has taken the place of another under its name: likely the same pod's.

    A pod that has a right to the name and claims it now is the better guess, and the record is left to it.
    """
    return None if any(owns_its_name(owner, trusted) for owner in claimants) else before


def is_guess_in_doubt(facts: SnapshotFacts, claimants: tuple[Owner, ...], trusted: tuple[str, ...]) -> bool:
    """Whether a snapshot's owner is a guess and the first to claim it is another pod with a right to the name.

    Then nothing tells which of them made it.
    """
    guess = facts.owner
    if guess is None or not facts.guessed:
        return False
    return any(owns_its_name(owner, trusted) and not owner.same_pod_name(guess) for owner in claimants)


def replaced_uids(known: Iterable[Owner], claimants: tuple[Owner, ...]) -> frozenset[str]:
    """Return the UIDs among `known` owners in whose place another pod of the same namespace and name claims now."""
    claiming = {owner.pod_uid for owner in claimants}
    return frozenset(
        owner.pod_uid
        for owner in known
        if owner.pod_uid
        and owner.pod_uid not in claiming
        and any(owner.same_pod_name(successor) for successor in claimants)
    )
