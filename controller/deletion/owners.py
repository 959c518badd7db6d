"""What each agent has been told of its node's owners, and what it has to be told next.

Why this exists: agents know owners only from full sets. Most of what a set must hold is simply the pods bound to the
node. One thing is not: a pod whose deletion was seen before its agent knew the pod's last state. Left out at once, the
agent would act on an older flag, or take its snapshots for those of the pod before it. Such a pod is named once more
with its last state; when that is acknowledged it leaves the set like any other.

Never after the next pod of its name has come and gone: to the agent the older one would look like a third pod of that
name, whose claim ends what was promised to the one in between.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.snapshot_words import Owner
from controller.deletion.model import FoundSnapshot
from controller.deletion.pods import PodRecord

# Half of what an agent takes at once, so that two leaders in a row do not get in each other's way.
_SLOTS = 8


@dataclass(slots=True)
class Departure:
    """A pod whose deletion was seen while leading; times are monotonic seconds.

    `heard`: the agent has certainly been told its last state. `crossed`: a set made before was on its way when the pod
    went; it may arrive after a promise and, naming the pod before it, end the promise again; `crossing` until some set
    is acknowledged. `answered`: a promise was given. `settled_at` is when a decision about it was carried out for good,
    None while it is not. `looks` counts the extra looks for snapshots that a runtime writes after the deletion.
    """

    record: PodRecord
    seen_at: float
    heard: bool
    crossed: bool = False
    crossing: bool = False
    answered: bool = False
    settled_at: float | None = None
    looks: int = 0


@dataclass(slots=True)
class Reply:
    """What an agent named after a sync and what is still to be decided of it.

    `epoch` and `revision` are the sync's; `done` are UIDs of owners whose snapshots were acted on since.
    """

    epoch: int
    revision: int
    found: tuple[FoundSnapshot, ...]
    told: frozenset[str]
    done: set[str] = field(default_factory=set)


@dataclass(slots=True)
class AgentBook:
    """What one node's agent was told.

    `told` is what the last acknowledged set named, by pod UID; `unsure` that the answer to a later set was lost;
    `due` that something changed since the last set was made.
    `channel` is the connection it was told over, `synced_at` when that was acknowledged. `setbacks` counts syncs in a
    row after which something could not be purged. `open` are the departures that are not settled. `undone` are UIDs of
    owners and since when their snapshots wait for a decision to be carried out. `slots` keep what is sent at once below
    what the agent takes at once.
    """

    node: str
    told: dict[str, PodRecord] = field(default_factory=dict)
    unsure: bool = True
    due: bool = False
    channel: object = None
    synced_at: float = float("-inf")
    reply: Reply | None = None
    setbacks: int = 0
    departures: dict[str, Departure] = field(default_factory=dict)
    open: dict[str, Departure] = field(default_factory=dict)
    undone: dict[str, float] = field(default_factory=dict)
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SLOTS))

    def acknowledged(self, named: Iterable[PodRecord], reply: Reply, channel: object, now: float) -> None:
        """The agent has applied this set."""
        self.told = {record.uid: record for record in named}
        self.unsure = False
        self.channel, self.reply, self.synced_at = channel, reply, now
        uids = {(record.namespace, record.name): record.uid for record in self.told.values()}
        for departure in self.open.values():
            record = departure.record
            is_succeeded = uids.get((record.namespace, record.name), record.uid) != record.uid
            # A set made before the pod went can name only the pod before it, which succeeds nobody.
            departure.heard = departure.heard or (is_succeeded and not departure.crossing) or self._knows(record)
            departure.crossing = False

    def depart(self, record: PodRecord, now: float) -> None:
        """The pod's deletion was seen; this is its last version, and the last word on its name."""
        for departure in self.open.values():
            departure.heard = departure.heard or _same_name(departure.record, record)
        departure = Departure(record, now, heard=self._knows(record), crossed=self.unsure, crossing=self.unsure)
        self.departures[record.uid] = self.open[record.uid] = departure

    def settle(self, uid: str, now: float) -> Departure | None:
        """Return the departure that is settled by this, None when there is none or it was settled before."""
        departure = self.open.pop(uid, None)
        if departure is not None:
            departure.settled_at = now
        return departure

    def drop(self, uid: str) -> None:
        """What this pod said last does not count any more."""
        self.departures.pop(uid, None)
        self.open.pop(uid, None)

    def lose(self, record: PodRecord) -> None:
        """The pod went unseen: what the ones of its name before it said last says nothing about what it left."""
        for uid in [uid for uid, each in self.departures.items() if _same_name(each.record, record)]:
            self.drop(uid)

    def forget(self, settled_before: float, seen_before: float) -> None:
        """Forget the pods that were settled before the one time, or seen to go before the other."""
        over = []
        for uid, departure in self.departures.items():
            if departure.seen_at >= max(settled_before, seen_before):
                break  # Those behind it were seen later, and settled later still.
            is_settled = departure.settled_at is not None and departure.settled_at < settled_before
            if is_settled or departure.seen_at < seen_before:
                over.append(uid)
        for uid in over:
            self.drop(uid)

    def is_behind(self, owner: Owner) -> bool:
        """Whether a later pod of the owner's name is gone too, and the agent has not been told of it."""
        return any(
            not each.heard and uid != owner.pod_uid
            for uid, each in self.open.items()
            if (each.record.namespace, each.record.name) == (owner.namespace, owner.pod_name)
        )

    def unheard(self, bound: Iterable[PodRecord]) -> list[PodRecord]:
        """Return the deleted pods to name once more beside those that are bound.

        Not one in whose place another pod of its name is bound: that one's claim says everything.
        """
        waiting = [each.record for each in self.open.values() if not each.heard]
        if not waiting:
            return []
        names = {(record.namespace, record.name) for record in bound}
        return [record for record in waiting if (record.namespace, record.name) not in names]

    def _knows(self, record: PodRecord) -> bool:
        known = self.told.get(record.uid)
        return known is not None and not self.unsure and known.same_owner(record)


def _same_name(one: PodRecord, other: PodRecord) -> bool:
    return (one.namespace, one.name) == (other.namespace, other.name)
