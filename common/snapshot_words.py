"""The words of the snapshot API that agent and controller share: whose a snapshot is, why it is kept or removed.

Why this exists: both sides decide in these words, and neither may import the other. Values of enums are those of the
API, so that a word means one thing on the wire, in a ledger and in a decision. Everything here is immutable.

A reason tells people why; it never changes what a call does. So one that is not given, or that only a newer version
knows, reads as REQUESTED, as if a person had asked: above all a promise to keep is never refused, or lost from a ledger
after going back to this version, for a reason that came later.
"""

import enum
import sys
from dataclasses import dataclass, replace


class RetainReason(enum.Enum):
    """Why a snapshot is kept."""

    SEAT_RELEASE = 1
    DISRUPTION = 2
    REQUESTED = 3

    @classmethod
    def _missing_(cls, value: object) -> "RetainReason | None":
        return cls.REQUESTED if isinstance(value, int) else None


class ReleaseReason(enum.Enum):
    """Why a retention ended."""

    SET_DELETED = 1
    WOKEN_ELSEWHERE = 2
    SUPERSEDED = 3
    REQUESTED = 4


class PurgeReason(enum.Enum):
    """Why a snapshot is removed."""

    TEARDOWN = 1
    SET_DELETED = 2
    WOKEN_ELSEWHERE = 3
    REQUESTED = 4

    @classmethod
    def _missing_(cls, value: object) -> "PurgeReason | None":
        return cls.REQUESTED if isinstance(value, int) else None


class RetainOutcome(enum.Enum):
    """What a retain did."""

    RETAINED = 1
    NOTHING_TO_RETAIN = 2
    SUPERSEDED = 3


class PurgeOutcome(enum.Enum):
    """What a purge did with one snapshot."""

    PURGED = 1
    NOTHING_TO_PURGE = 2
    SKIPPED_RETAINED = 3
    SKIPPED_IN_USE = 4
    SKIPPED_PENDING = 5
    SKIPPED_NEWER = 6
    SKIPPED_FOREIGN = 7
    DEFERRED = 8


@dataclass(frozen=True, slots=True)
class Owner:
    """A pod bound to a node and the VM it claims, as agents are told and as they record it.

    Owners are told apart by `pod_uid`, never by name. A person may name a VM without knowing its pod; then everything
    but `vm_name` is empty, as is every text that is not known.
    """

    pod_uid: str
    namespace: str
    pod_name: str
    vm_name: str
    managed: bool = False
    set_name: str = ""
    set_uid: str = ""
    vm_id: str = ""
    ephemeral_storage_request_bytes: int = 0
    keep_on_delete: bool = False

    def with_shared_texts(self) -> "Owner":
        """Return the same owner, with one copy in memory of each text that many owners have in common."""
        return replace(
            self,
            namespace=sys.intern(self.namespace),
            set_name=sys.intern(self.set_name),
            set_uid=sys.intern(self.set_uid),
        )

    def same_pod_name(self, other: "Owner") -> bool:
        """Whether both are pods of one namespace and name, be they the same pod or one after the other."""
        return bool(self.pod_name) and (self.namespace, self.pod_name) == (other.namespace, other.pod_name)
