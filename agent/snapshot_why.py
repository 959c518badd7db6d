"""Why a snapshot stays or goes, in sentences, from what the agent says of it.

Why this exists: an operator who finds a snapshot missing or a disk full asks for the rule, not for the state.
"""

from collections.abc import Iterable, Iterator

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.enum_words import enum_word

_STATES = {
    pb.SNAPSHOT_STATE_PURGING: "its removal has begun",
    pb.SNAPSHOT_STATE_PENDING: "it is being written: nothing removes it",
    pb.SNAPSHOT_STATE_IN_USE: "an owner claims it, a VM uses it, or the ledger waits for a sync: nothing removes it",
    pb.SNAPSHOT_STATE_SHARED: "its name is not a VM's own: it is only ever listed",
    pb.SNAPSHOT_STATE_INVALID: "it was read completely and is wrong: it cannot be kept, and goes like an unclaimed one",
    pb.SNAPSHOT_STATE_RETAINED: "it is kept as a warm-wake cache: a purge leaves it alone",
    pb.SNAPSHOT_STATE_UNCLAIMED: "no owner is known and nobody asked to keep it: a purge may remove it",
}
_NEWER = "a state of a newer agent, which this version does not know"
_COLLECTABLE = (pb.SNAPSHOT_STATE_INVALID, pb.SNAPSHOT_STATE_RETAINED, pb.SNAPSHOT_STATE_UNCLAIMED)


def reasons(snapshot: pb.Snapshot, collection: Iterable[pb.CollectGarbageResponse]) -> Iterator[str]:
    """Return sentences about a snapshot; `collection` is a dry run under the configured policy."""
    state = enum_word(pb.SnapshotState.DESCRIPTOR, snapshot.state)
    yield f"{snapshot.name} is {state}: {_STATES.get(snapshot.state, _NEWER)}"
    for problem in snapshot.problems:
        yield f"problem: {problem}"
    if snapshot.owner.pod_name:
        owner = snapshot.owner
        yield f"recorded for pod {owner.namespace}/{owner.pod_name}: no other pod may have it purged"
        if not owner.managed or owner.vm_name != f"vk-{owner.namespace}-{owner.pod_name}":
            yield "its owner is unmanaged or has a foreign VM name: no controller purges it (trusted prefixes apart)"
    if snapshot.HasField("retention"):
        yield _kept(snapshot.retention)
    if snapshot.state in _COLLECTABLE:
        yield _collected(snapshot.name, collection)


def _kept(kept: pb.Retention) -> str:
    reason = enum_word(pb.RetainReason.DESCRIPTOR, kept.reason)
    end = f"until {kept.expire_time.ToJsonString()}" if kept.HasField("expire_time") else "until it is released"
    backup = "a backup was seen" if kept.backup_verified else "no backup was seen"
    return f"retained for {reason} since {kept.create_time.ToJsonString()}, {end}; {backup}"


def _collected(name: str, collection: Iterable[pb.CollectGarbageResponse]) -> str:
    for message in collection:
        if message.HasField("item") and message.item.name == name:
            reason = enum_word(pb.CollectionReason.DESCRIPTOR, message.item.reason)
            return f"the next collection removes it: {reason}"
        if message.HasField("summary") and message.summary.deferred_reason:
            return f"a collection would do nothing now: {message.summary.deferred_reason}"
    return "the next collection leaves it alone: within its limits, or still within the grace period"
