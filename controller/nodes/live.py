"""Nodes and Leases from the API's bytes, reduced to what the plan looks at.

`NodeObject` is what a reflector keeps: a thousand Nodes with all their images and managed fields would be a hundred
megabytes, with these few fields they are four.
"""

from datetime import UTC, datetime
from functools import lru_cache
from sys import intern

import msgspec

from controller.nodes.model import FieldOwner, LiveCondition, LiveLease, LiveNode
from controller.nodes.report import NodeAddress


class _Nothing(msgspec.Struct, gc=False):
    """A leaf of the managed fields; what is below it does not matter."""


class _MetadataFields(msgspec.Struct):
    labels: dict[str, _Nothing] = msgspec.field(name="f:labels", default_factory=dict)
    annotations: dict[str, _Nothing] = msgspec.field(name="f:annotations", default_factory=dict)


class _StatusFields(msgspec.Struct):
    capacity: dict[str, _Nothing] = msgspec.field(name="f:capacity", default_factory=dict)
    allocatable: dict[str, _Nothing] = msgspec.field(name="f:allocatable", default_factory=dict)
    conditions: dict[str, _Nothing] = msgspec.field(name="f:conditions", default_factory=dict)
    addresses: dict[str, _Nothing] = msgspec.field(name="f:addresses", default_factory=dict)
    node_info: dict[str, _Nothing] = msgspec.field(name="f:nodeInfo", default_factory=dict)


class _Fields(msgspec.Struct):
    metadata: _MetadataFields | None = msgspec.field(name="f:metadata", default=None)
    status: _StatusFields | None = msgspec.field(name="f:status", default=None)


class _ListKey(msgspec.Struct):
    type: str = ""


class ManagedFields(msgspec.Struct):
    """One entry of the managed fields; the tree is turned into `owner` when it is read and dropped."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: _Fields | None = msgspec.field(name="fieldsV1", default=None)
    owner: FieldOwner | None = None

    def __post_init__(self) -> None:
        """Reduce the tree."""
        names = _shared(frozenset(_field_names(self.fields_v1))) if self.fields_v1 else frozenset()
        self.owner = FieldOwner(intern(self.manager), intern(self.operation), intern(self.subresource), names)
        self.fields_v1 = None


class NodeMetadata(msgspec.Struct, rename="camel"):
    """Metadata of a Node."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    managed_fields: list[ManagedFields] | None = None
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct):
    provider_id: str = msgspec.field(name="providerID", default="")


class _Condition(msgspec.Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class _Address(msgspec.Struct):
    type: str = ""
    address: str = ""


class _Status(msgspec.Struct, rename="camel"):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    node_info: dict[str, str | dict[str, object]] | None = None


class NodeObject(msgspec.Struct):
    """A Node as a reflector keeps it; `live_node` makes the plan's view of it."""

    metadata: NodeMetadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class LeaseMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """Metadata of a Lease; what others may put there is kept as it came, managed fields are not read at all."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[dict[str, object]] | None = None
    finalizers: list[str] | None = None


class LeaseObject(msgspec.Struct, rename="camel"):
    """A Lease; what others put into it is kept as it is, so that a renewal sends it back."""

    metadata: LeaseMetadata
    spec: dict[str, object] = msgspec.field(default_factory=dict)
    api_version: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


_decode_node = msgspec.json.Decoder(NodeObject).decode


def parse_node(body: bytes) -> LiveNode:
    """The Node in an answer of the API."""
    return live_node(_decode_node(body))


def live_node(item: NodeObject) -> LiveNode:
    """The plan's view of a Node."""
    meta, status = item.metadata, item.status
    return LiveNode(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        provider_id=item.spec.provider_id,
        capacity=status.capacity or {},
        allocatable=status.allocatable or {},
        conditions=tuple(
            LiveCondition(each.type, each.status, each.reason, each.message, each.last_transition_time or "")
            for each in status.conditions or ()
        ),
        addresses=tuple(NodeAddress(each.type, each.address) for each in status.addresses or ()),
        # An empty text is how the API spells an absent fact; newer kinds of facts are objects and not ours.
        node_info={key: value for key, value in (status.node_info or {}).items() if isinstance(value, str) and value},
        owners=tuple(entry.owner for entry in meta.managed_fields or () if entry.owner),
        deleting=meta.deletion_timestamp is not None,
    )


def live_lease(item: LeaseObject) -> LiveLease:
    """The plan's view of a Lease; a time that cannot be read counts as never renewed."""
    holder, renewed, duration = (item.spec.get(key) for key in ("holderIdentity", "renewTime", "leaseDurationSeconds"))
    return LiveLease(
        str(holder or ""),
        parse_time(renewed) if isinstance(renewed, str) else None,
        duration if isinstance(duration, int) else 0,
    )


def parse_time(text: str | None) -> datetime | None:
    """A time of the API as aware UTC, None when it is absent or not a time."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _shared(names: frozenset[str]) -> frozenset[str]:
    # Most Nodes of a cluster have the same fields; they share one set.
    return names


def _field_names(fields: _Fields) -> list[str]:
    names: list[str] = []
    if fields.metadata:
        names += _map_names("label", fields.metadata.labels) + _map_names("annotation", fields.metadata.annotations)
    if fields.status:
        status = fields.status
        names += _map_names("capacity", status.capacity) + _map_names("allocatable", status.allocatable)
        names += _map_names("nodeInfo", status.node_info)
        names += _list_names("condition", status.conditions) + _list_names("address", status.addresses)
    return names


def _map_names(kind: str, entries: dict[str, _Nothing]) -> list[str]:
    return [intern(f"{kind}:{key[2:]}") for key in entries if key.startswith("f:")]


def _list_names(kind: str, entries: dict[str, _Nothing]) -> list[str]:
    return [
        intern(f"{kind}:{msgspec.json.decode(key[2:], type=_ListKey).type}") for key in entries if key.startswith("k:")
    ]
