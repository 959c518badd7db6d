"""The words of pod deletion as types: pods, sets, retentions, and the decisions about them.

Why this exists: what is decided about a snapshot has to be readable and testable without an API server, an agent or a
clock. Everything here is immutable.
"""

import enum
from dataclasses import dataclass

from common.snapshot_words import Owner, PurgeOutcome, PurgeReason, ReleaseReason, RetainReason


@dataclass(frozen=True, slots=True)
class LivePod:
    """A pod that exists in the API, terminating or finished included, as far as a decision asks about it.

    `node` is empty while it is not bound. `restores`: it restores its VM from the hibernate snapshot. `vm_live`: its
    VM runs, that is, the engine's id is known and a container is running.
    """

    uid: str
    namespace: str
    name: str
    node: str
    vm_name: str
    restores: bool = False
    vm_live: bool = False


class SetStanding(enum.Enum):
    """What is known of the CocoonSet that an owner names by UID."""

    NONE = "the owner names no set by UID"
    UNREAD = "the set was not read, or the read failed"
    NOT_SERVED = "the API does not serve CocoonSets"
    GONE = "an uncached read says that the set is gone"
    MISSING = "the set is not in our copy of the list, which proves nothing"
    EXISTS = "the set exists"


@dataclass(frozen=True, slots=True)
class SetFacts:
    """The owner's set. The last three fields hold for one that exists: `hibernated_on_node` is its stash, or empty.

    `confirmed`: this is an uncached read made for the decision at hand.
    """

    standing: SetStanding
    confirmed: bool = False
    deleting: bool = False
    suspended: bool = False
    hibernated_on_node: str = ""


NO_SET = SetFacts(SetStanding.NONE, confirmed=True)


@dataclass(frozen=True, slots=True)
class NamesakeFacts:
    """What an uncached read of the owner's namespace and pod name says; `pod` is None when there is no such pod.

    Without `confirmed` nobody has asked, or the read failed.
    """

    confirmed: bool = False
    pod: LivePod | None = None


NAMESAKE_UNREAD = NamesakeFacts()


@dataclass(frozen=True, slots=True)
class SeenDeletion:
    """What the last version of a pod said whose deletion this process saw while leading."""

    keep: bool
    disrupted: bool


@dataclass(frozen=True, slots=True)
class RetentionFacts:
    """The promise under which an agent keeps a copy; `expires_in_seconds` is None when it does not end by itself.

    `whole`: it covers every snapshot of the owner; one that appeared later may not be covered yet.
    """

    reason: RetainReason
    expires_in_seconds: float | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a decision about one owner's snapshots on one node depends on.

    Attributes:
        node: The node that holds them; empty when the pod was never scheduled.
        owner: Whose they are: the last version of the pod when its deletion was seen, else what the agent recorded.
        pods_synced: Whether our copy of the pods is whole.
        pods_current: Whether list and watch of the pods work, too.
        claimants: The live pods of that copy whose VM name is the owner's.
        namesake: The uncached read of the owner's namespace and pod name.
        cocoon_set: The owner's set.
        retention: The promise they are kept under, if any.
        seen: The last version of the pod, when its deletion was seen.
        trusted_prefixes: VM name prefixes that are no pod's own and yet not foreign.
    """

    node: str
    owner: Owner
    pods_synced: bool
    pods_current: bool = True
    claimants: tuple[LivePod, ...] = ()
    namesake: NamesakeFacts = NAMESAKE_UNREAD
    cocoon_set: SetFacts = NO_SET
    retention: RetentionFacts | None = None
    seen: SeenDeletion | None = None
    trusted_prefixes: tuple[str, ...] = ()


class Action(enum.Enum):
    """What to do next."""

    WAIT = "look again later"
    CONFIRM = "read pod and set uncached, then decide again"
    NOTHING = "leave the snapshots as they are"
    RETAIN = "promise to keep them"
    RELEASE = "end the promise"
    PURGE = "end the promise if there is one, then remove them"


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done about one owner's snapshots on one node, and why.

    `row` is the row of the table that fits. `release` and `purge` are set for RELEASE and PURGE, `retain` and
    `ttl_seconds` (None: until released) for RETAIN. `unseen`: the deletion was not seen, so a purge counts against the
    brake.
    """

    row: int
    action: Action
    why: str
    retain: RetainReason | None = None
    ttl_seconds: float | None = None
    release: ReleaseReason | None = None
    purge: PurgeReason | None = None
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot that an agent names because nobody claims its VM.

    `owner` is whom it is kept for, else who was last seen to claim it, None when the agent knows nobody.
    `retained` is why it is kept, `expires_at` when that ends (Unix seconds, None: not by itself). `invalid`: it was
    read completely and is wrong, so that it is never kept. `backup_verified`: its copy in the registry was seen when
    it was kept.
    """

    name: str
    vm_name: str
    owner: Owner | None = None
    retained: RetainReason | None = None
    expires_at: float | None = None
    allocated_bytes: int = 0
    invalid: bool = False
    backup_verified: bool = False


@dataclass(frozen=True, slots=True)
class LocatedSnapshot:
    """A snapshot with its state in the API's words, such as RETAINED, for people who look for it."""

    found: FoundSnapshot
    snapshot_id: str
    state: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What a purge did with one snapshot. `deferred_reason` is stable, `message` is for a person."""

    name: str
    outcome: PurgeOutcome
    allocated_bytes: int = 0
    deferred_reason: str = ""
    message: str = ""
