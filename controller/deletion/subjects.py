"""From an agent's answer to questions: which owners' snapshots are to be decided, and under which promise they are.

Why this exists: an agent names snapshots, decisions are about owners. A VM has two snapshots, which may be kept by
different promises or by none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from common.snapshot_words import Owner, RetainReason
from controller.deletion.model import FoundSnapshot, RetentionFacts, SeenDeletion
from controller.deletion.owners import Departure

_STRENGTH = {RetainReason.SEAT_RELEASE: 3, RetainReason.REQUESTED: 2, RetainReason.DISRUPTION: 1}


@dataclass(frozen=True, slots=True)
class Subject:
    """One owner's snapshots on one node. `owner` is the pod's last version when its deletion was seen."""

    owner: Owner
    snapshots: tuple[FoundSnapshot, ...]
    retention: RetentionFacts | None = None
    seen: SeenDeletion | None = None


def subjects_of(found: Iterable[FoundSnapshot], departures: Mapping[str, Departure], now: float) -> list[Subject]:
    """Group what an agent named by owner; `now` is Unix seconds. What has no known owner is nobody's to decide."""
    grouped: dict[tuple[str, str, str, str], list[FoundSnapshot]] = {}
    for snapshot in found:
        owner = snapshot.owner or _departed_owner(snapshot.vm_name, departures)
        if owner is not None and owner.pod_uid and owner.vm_name == snapshot.vm_name:
            key = (owner.pod_uid, owner.namespace, owner.pod_name, owner.vm_name)
            named = snapshot if snapshot.owner is owner else replace(snapshot, owner=owner)
            grouped.setdefault(key, []).append(named)
    return [_subject(snapshots, departures, now) for snapshots in grouped.values()]


def beside(subject: Subject, subjects: Iterable[Subject]) -> list[Subject]:
    """Return the others whose snapshots a purge for this one would reach: a purge names a VM."""
    name = subject.owner.vm_name
    return [each for each in subjects if each is not subject and each.owner.vm_name == name and each.retention is None]


def _departed_owner(vm_name: str, departures: Mapping[str, Departure]) -> Owner | None:
    """Whose a snapshot is that appeared only when its pod was gone: the last pod whose own name makes the VM's name.

    When pods of two names make it, nothing tells whose it is.
    """
    records = [each.record for each in departures.values() if not each.record.own_vm_name]
    records = [record for record in records if record.vm_name == vm_name]
    if not records or len({(record.namespace, record.name) for record in records}) > 1:
        return None
    return records[-1].owner()


def _subject(snapshots: list[FoundSnapshot], departures: Mapping[str, Departure], now: float) -> Subject:
    owner = snapshots[0].owner
    if owner is None:
        raise ValueError("a snapshot without owner has no subject")
    departure = departures.get(owner.pod_uid)
    seen = None
    if departure is not None and departure.record.vm_name == owner.vm_name:
        owner, seen = departure.record.owner(), departure.record.said()
    return Subject(owner, tuple(snapshots), _retention(snapshots, now), seen)


def _retention(snapshots: list[FoundSnapshot], now: float) -> RetentionFacts | None:
    """Return the strongest promise among them; it is whole when every one that can be kept is kept by such a one."""
    kept = [each for each in snapshots if each.retained is not None]
    if not kept:
        return None
    strongest = max(kept, key=lambda each: (_STRENGTH[_reason(each)], each.expires_at is None, each.expires_at or 0.0))
    reason = _reason(strongest)
    whole = all(each.retained is reason or each.invalid for each in snapshots)
    ends = None if strongest.expires_at is None else strongest.expires_at - now
    return RetentionFacts(reason, ends, whole)


def _reason(snapshot: FoundSnapshot) -> RetainReason:
    return snapshot.retained or RetainReason.REQUESTED
