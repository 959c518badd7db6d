"""What an agent says about its host, as the controller keeps it, and how connections hand it over.

The fields are those of the API's `NodeResourcesReport`. They are plain dataclasses so that everything that decides can
be tested, printed and compared without protobuf; the connection is the one place that converts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

ConditionStatus = Literal["True", "False", "Unknown"]
ResourceSource = Literal["PROBED", "OVERRIDDEN"]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One step between what was read and what may be scheduled; `value` is signed, in the resource's base unit."""

    reason: str
    value: int


@dataclass(frozen=True, slots=True)
class ResourceExplanation:
    """How one number came about; values are in the resource's base unit (millicores, bytes, count)."""

    name: str
    source: ResourceSource
    origin: str
    raw_value: int
    adjustments: tuple[Adjustment, ...]
    capacity_value: int
    allocatable_value: int
    observed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HostInfo:
    """Facts about the host; what could not be read is empty."""

    cpu_model: str = ""
    architecture: str = ""
    kernel_version: str = ""
    os_image: str = ""
    boot_id: str = ""
    machine_id: str = ""
    system_uuid: str = ""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """One address; `type` as in Kubernetes, `InternalIP` or `Hostname`."""

    type: str
    address: str


@dataclass(frozen=True, slots=True)
class HostCondition:
    """One statement of the agent about its host, for the Node's status."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    last_transition_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Everything the controller needs to write a Node.

    `capacity` and `allocatable` hold canonical quantities by resource name, exactly what is written to the Node.
    A key of `managed_label_keys` that is not in `labels` must not be on the Node. `instance_id` is new at every start
    of the agent; `revision` grows with each change within one instance.
    """

    node_name: str
    instance_id: str
    revision: int
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    labels: Mapping[str, str]
    managed_label_keys: tuple[str, ...] = ()
    reserve_percent: int = 0
    resources: tuple[ResourceExplanation, ...] = ()
    host: HostInfo = field(default_factory=HostInfo)
    addresses: tuple[NodeAddress, ...] = ()
    provider_id: str = ""
    conditions: tuple[HostCondition, ...] = ()
    agent_version: str = ""
    observed_at: datetime | None = None


class AgentObserver(Protocol):
    """Whom the connections tell what they see. `NodeReconciler` is one; no call blocks or raises.

    `agent` names the endpoint (its address as discovered) and stays the same while that endpoint is configured: it
    tells two agents that claim the same node name apart. Times are taken when the call is made.
    """

    def expect_agent(self, agent: str, node_name: str) -> None:
        """Discovery found an agent that should speak for `node_name`; nothing has been heard from it yet."""

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """A report came in; it counts as a contact too. Its name has already been checked against the agent's."""

    def observe_contact(self, agent: str, node_name: str) -> None:
        """The agent sent a heartbeat: it lives and its last report still holds."""

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """The stream ended; `reason` is one stable word in CamelCase, such as `ConnectionRefused`."""

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """What the agent says is not used, for an event on the Node `node_name` (empty when not even that is known).

        `reason` is `IdentityMismatch` (it speaks for another node; the stream is dropped), `InvalidReport` (the stream
        stays, its heartbeats count, the last good report still holds) or `AddressRefused` (it may not be dialled).
        Called once when it begins, not at each repetition.
        """

    def forget_agent(self, agent: str, node_name: str) -> None:
        """Discovery no longer lists this agent."""
