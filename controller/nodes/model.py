"""The live objects as the plan sees them, and the names that are ours on them.

Plain dataclasses: `live.py` makes them from the API's bytes, tests make them by hand.

A *field* is the unit of ownership: a string `kind:key` such as `label:cocoonstack.io/pool`, `capacity:cpu`,
`condition:Ready` or `address:InternalIP`. Its value is the text under it, None when it is absent.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from controller.nodes.report import NodeAddress

CONTROLLER = "cocoon-node-controller"
"""Field manager of everything but registration, holder of the Leases, value of the registration annotation."""

REGISTRATION = "cocoon-node-registration"
"""Field manager of the POST; another than CONTROLLER, so that no later apply can take registration back."""

REGISTERED_BY = "cocoonstack.io/registered-by"
ACCEPTED_MACHINE = "cocoonstack.io/accepted-machine-id"
ROLE_LABEL = "node-role.kubernetes.io/cocoon-vm"
TYPE_LABEL = "type"
VIRTUAL_KUBELET = "virtual-kubelet"
TAINT = {"key": "virtual-kubelet.io/provider", "value": "cocoon", "effect": "NoSchedule"}
LEASE_NAMESPACE = "kube-node-lease"


@dataclass(frozen=True, slots=True)
class LiveCondition:
    """A condition as it is on the Node; the time is kept as the API spells it."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


@dataclass(frozen=True, slots=True)
class FieldOwner:
    """One entry of a Node's managed fields, reduced to the kinds of field this package writes."""

    manager: str
    operation: str
    subresource: str
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A Node as last read."""

    name: str
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    provider_id: str = ""
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[LiveCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[FieldOwner, ...] = ()
    deleting: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether we registered it."""
        return self.annotations.get(REGISTERED_BY) == CONTROLLER

    @property
    def is_kubelets(self) -> bool:
        """Whether a kubelet runs it: its field manager, or a container runtime without a virtual kubelet's mark."""
        if any(owner.manager == "kubelet" for owner in self.owners):
            return True
        return bool(self.node_info.get("containerRuntimeVersion")) and self.labels.get(TYPE_LABEL) != VIRTUAL_KUBELET

    @property
    def expected_machine_id(self) -> str:
        """The machine an operator accepted, else the one the Node was written for; empty when nobody knows."""
        return self.annotations.get(ACCEPTED_MACHINE) or self.node_info.get("machineID", "")

    def condition(self, condition_type: str) -> LiveCondition | None:
        """The condition of that type."""
        return next((item for item in self.conditions if item.type == condition_type), None)

    def owned(self) -> frozenset[str]:
        """Fields our applies own, so that leaving one out of the next apply would take it off."""
        return frozenset[str]().union(*(owner.fields for owner in self.owners if _is_our_apply(owner)))

    def is_owned_by_others(self, name: str) -> bool:
        """Whether anybody but our applies owns the field, so that un-applying it would leave it."""
        return any(name in owner.fields and not _is_our_apply(owner) for owner in self.owners)

    def fields(self) -> Iterator[tuple[str, str]]:
        """Every field the conflict rule covers, with its value."""
        for kind, values in (
            ("label", self.labels),
            ("capacity", self.capacity),
            ("allocatable", self.allocatable),
            ("nodeInfo", self.node_info),
        ):
            for key, value in values.items():
                yield f"{kind}:{key}", value
        for address in self.addresses:
            yield f"address:{address.type}", address.address


def _is_our_apply(owner: FieldOwner) -> bool:
    return owner.manager == CONTROLLER and owner.operation == "Apply"


@dataclass(frozen=True, slots=True)
class LiveLease:
    """A Node's Lease as last read; `holder` is empty when nobody holds it."""

    holder: str
    renewed_at: datetime | None = None
    duration_seconds: int = 0

    @property
    def is_foreign(self) -> bool:
        """Whether somebody else keeps this Node alive."""
        return bool(self.holder) and self.holder != CONTROLLER


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment on both clocks: `wall` is aware UTC, for what is written; `monotonic` in seconds, for intervals."""

    wall: datetime
    monotonic: float

    @property
    def timestamp(self) -> str:
        """The wall time as the API spells it, in whole seconds."""
        return self.wall.strftime("%Y-%m-%dT%H:%M:%SZ")
