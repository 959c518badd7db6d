"""The words of seat release as types: sets, pods, what a registry and agents say, and the steps that follow.

Why this exists: whether a VM is put to sleep, its seat freed, or booted anew has to be readable and testable without an
API server, a registry or a clock. Everything here is immutable.
"""

import enum
from dataclasses import dataclass, field

from common.vm_names import pod_vm_name

RELEASED_CONDITION = "SeatReleased"
MISSING_CONDITION = "HibernateSnapshotMissing"


class RegistryAnswer(enum.Enum):
    """What a registry says about a VM's hibernate snapshot. UNKNOWN is every answer that is neither."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ManifestAnswer:
    """A registry's answer about one VM. `why` is for people; `snapshot_id` and `digest` are empty when not known."""

    answer: RegistryAnswer
    why: str = ""
    snapshot_id: str = ""
    digest: str = ""


class TagDeletion(enum.Enum):
    """What became of deleting a tag. KEPT: this registry deletes no tags; FAILED: to be tried again."""

    DELETED = "deleted"
    ABSENT = "absent"
    KEPT = "kept"
    FAILED = "failed"


class Phase(enum.Enum):
    """Phase of a CocoonSet as far as this room writes or reads it; OTHER is any word of somebody else's."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    WAKING = "Waking"
    FAILED = "Failed"
    OTHER = "?"


class Lifecycle(enum.Enum):
    """What the runtime says about a pod's VM; OTHER is silence or any other word."""

    CREATING = "creating"
    READY = "ready"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    FAILED = "failed"
    OTHER = ""


class Reason(enum.Enum):
    """Reason of the condition `SeatReleased`. It also remembers between steps what a restart must not forget."""

    RUNNING = "Running"
    HIBERNATING = "Hibernating"
    SUSPENDED = "Suspended"
    RESTORING = "Restoring"
    BOOTING = "Booting"
    RESUMING = "Resuming"
    SNAPSHOT_MISSING = "SnapshotMissing"
    DROPPING_SNAPSHOT = "DroppingSnapshot"
    REGISTRY_NOT_CONFIGURED = "RegistryNotConfigured"
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    POD_ENDED = "PodEnded"
    POD_ENDING = "PodEnding"
    NAME_TAKEN = "PodNameTaken"
    VM_NAME_TAKEN = "VmNameTaken"
    OTHER = "?"


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as a plan wants it or as it is; times are the writer's."""

    type: str
    status: str
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Agent:
    """One entry of `status.agents`: what is known of the set's VM. Texts are empty when unknown."""

    pod_name: str
    vm_name: str
    vm_id: str = ""
    ip: str = ""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class CocoonSet:
    """A set as far as its seat is concerned.

    Attributes:
        generation: Counts changes of the spec.
        suspended: What its owner wants.
        releases: Whether its policy is `release`.
        main_only: Whether it has neither sub-agents nor toolboxes.
        stash: The node in `hibernated-on-node`, empty without one.
        discard: Whether a person said that the hibernate snapshot may be given up.
        observed_generation: The generation its status is about.
        conditions: Those of this room, as they are.
    """

    namespace: str
    name: str
    uid: str
    generation: int = 1
    suspended: bool = False
    releases: bool = True
    main_only: bool = True
    deleting: bool = False
    stash: str = ""
    discard: bool = False
    phase: Phase = Phase.NONE
    observed_generation: int = 0
    agents: tuple[Agent, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def pod_name(self) -> str:
        """Name of the main pod."""
        return f"{self.name}-0"

    @property
    def vm_name(self) -> str:
        """Name of the main VM."""
        return pod_vm_name(self.namespace, self.pod_name)

    @property
    def reason(self) -> Reason | None:
        """The reason this room wrote last; None when it has never taken the set in hand."""
        condition = self.condition(RELEASED_CONDITION)
        if condition is None:
            return None
        return next((each for each in Reason if each.value == condition.reason), Reason.OTHER)

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of a set, or one that has the name of its main pod. Texts are empty when unset.

    Attributes:
        set_uid: UID of the set that controls it.
        node: Where it is bound.
        vm_name: The VM it claims.
        terminating: Whether its deletion has begun.
        ended: Whether it has ended for good, so that it has no VM.
        hibernates, keeps, restores: The annotations of these names are `"true"`.
        observed_generation: Generation of the set that `lifecycle` belongs to; -1 when none is said.
        stamped_generation: Generation of the set written on the pod; -1 without.
        running: Whether a container runs.
        unschedulable: Why the scheduler finds no place for it; empty when it does not say so.
        left_to_hibernation: A CocoonHibernation object targets it.
    """

    namespace: str
    name: str
    uid: str
    set_uid: str = ""
    resource_version: str = ""
    node: str = ""
    vm_name: str = ""
    terminating: bool = False
    ended: bool = False
    hibernates: bool = False
    keeps: bool = False
    restores: bool = False
    lifecycle: Lifecycle = Lifecycle.OTHER
    observed_generation: int = -1
    stamped_generation: int = -1
    vm_id: str = ""
    ip: str = ""
    phase: str = ""
    running: bool = False
    unschedulable: str = ""
    left_to_hibernation: bool = False

    @property
    def vm_live(self) -> bool:
        """Whether its VM runs."""
        return bool(self.vm_id) and self.running

    @property
    def asleep(self) -> bool:
        """Whether the runtime says that the VM hibernates or is about to."""
        return self.lifecycle in (Lifecycle.HIBERNATING, Lifecycle.HIBERNATED)


@dataclass(frozen=True, slots=True)
class PodRead:
    """What an uncached read of the main pod's name says; `pod` is None when there is none."""

    pod: Pod | None


@dataclass(frozen=True, slots=True)
class Copies:
    """Where agents that answer hold a snapshot of the VM. `complete`: every agent that is known was asked."""

    nodes: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the next steps of one set depend on. What was not asked yet is None.

    Attributes:
        cocoon_set: The set, from our copy or, when `set_read`, read uncached for this very plan.
        pods: Its pods as our copy has them; the main one as `pod_read` says when that was read.
        registry_configured: Whether there is a registry to ask.
        manifests: Answers of the registry by VM name.
        hibernations_known: Whether it is known which pods CocoonHibernation objects target.
        older_namesake: An older set of another namespace whose main VM has the same name; empty when there is none.
    """

    cocoon_set: CocoonSet
    pods: tuple[Pod, ...] = ()
    set_read: bool = False
    pod_read: PodRead | None = None
    registry_configured: bool = True
    manifests: dict[str, ManifestAnswer] = field(default_factory=dict)
    copies: Copies | None = None
    hibernations_known: bool = True
    older_namesake: str = ""
