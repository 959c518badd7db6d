"""What a plan consists of: steps, each one thing to find out or to do, with its reason."""

import enum
from dataclasses import dataclass

from controller.seats.model import Agent, Condition, Phase, Pod


class Do(enum.Enum):
    """What a step does. The first four only ask; the plan is made anew with what they say."""

    READ_SET = "read the set"
    READ_POD = "read the main pod"
    ASK_REGISTRY = "ask the registry"
    ASK_AGENTS = "ask the agents"
    HIBERNATE = "tell the pod to hibernate"
    RESUME = "take back what told the pod to hibernate and to keep its snapshot"
    STASH = "write the node down"
    FLAG = "write the keep flag"
    DELETE = "delete the pod"
    DELETE_UNBOUND = "delete the pod that was never bound"
    CREATE = "create the main pod"
    CLEAR_STASH = "clear the stash"
    DROP_TAG = "delete the hibernate tag"
    KEEP_COPIES = "have agents keep their copies"
    STATUS = "write the status"
    TELL = "send an event"

    @property
    def asks(self) -> bool:
        """Whether it changes nothing and only finds out."""
        return self in _QUESTIONS


_QUESTIONS = frozenset({Do.READ_SET, Do.READ_POD, Do.ASK_REGISTRY, Do.ASK_AGENTS})


@dataclass(frozen=True, slots=True)
class Status:
    """The status a plan wants; conditions of others stay as they are."""

    phase: Phase
    conditions: tuple[Condition, ...]
    agents: tuple[Agent, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and why. The other fields hold for the kinds that need them.

    Attributes:
        pod: For steps about one pod.
        node: The node to write down, or the one preferred for a pod that is created.
        restores: Whether a pod that is created restores the hibernate snapshot.
        vm_name: The VM that a registry or agents are asked about.
        nodes: Where copies are to be kept.
        placement: Where a wake landed: `hint-node` or `pool`; empty when it is not counted.
        status: The status to write.
        event: Reason of an event to send, one CamelCase word; `why` is its text.
        warning: Whether that event is a warning.
    """

    do: Do
    why: str
    pod: Pod | None = None
    node: str = ""
    restores: bool = False
    vm_name: str = ""
    nodes: tuple[str, ...] = ()
    placement: str = ""
    status: Status | None = None
    event: str = ""
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The next steps in order. `again_seconds`: when to look again if nothing changes; None: not before."""

    steps: tuple[Step, ...] = ()
    again_seconds: float | None = None
