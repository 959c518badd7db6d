"""From an agent's bytes to a `NodeReport`, or a refusal that says which field is wrong.

Why this exists: what an agent says is written to Nodes. A host that is broken or in other hands must not be able to
publish nonsense, to zero a Node, to speak for another node, or to move labels that are none of its business. Such a
report is refused whole and the last good one stays. Fields and enum values this version does not know are tolerated.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sized
from datetime import UTC, datetime
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.timestamp_pb2 import Timestamp

from cocoonstack.node.v1 import node_resources_pb2 as pb
from common.kubernetes_names import is_name_part, is_node_name
from common.quantity import Quantity, QuantityError, parse_quantity
from controller.agents.endpoints import shown
from controller.nodes.report import (
    Adjustment,
    ConditionStatus,
    HostCondition,
    HostInfo,
    NodeAddress,
    NodeReport,
    ResourceExplanation,
    ResourceSource,
)

S = TypeVar("S", bound=Sized)

_MAX_ENTRIES: Final = 64
_MAX_TEXT: Final = 1024
_MAX_MESSAGE: Final = 32 * 1024
# A call and the longest path an agent takes.
_MAX_ORIGIN: Final = 5 * 1024

_REQUIRED_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage", "pods")
_HOST_FACTS: Final = ("cpu_model", "architecture", "kernel_version", "os_image", "boot_id", "machine_id", "system_uuid")
# What an agent may manage: our own domain and the few standard keys of the contract. Anything else belongs to others.
_LABEL_DOMAIN: Final = "cocoonstack.io"
_LABEL_KEYS: Final = frozenset(
    {
        "node-role.kubernetes.io/cocoon-vm",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
    }
)

_PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_CONDITION_REASON = re.compile(r"[A-Za-z](?:[A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")

_STATUSES: Final[Mapping[int, ConditionStatus]] = {
    pb.CONDITION_STATUS_TRUE: "True",
    pb.CONDITION_STATUS_FALSE: "False",
}
_SOURCES: Final[Mapping[int, ResourceSource]] = {pb.RESOURCE_SOURCE_OVERRIDDEN: "OVERRIDDEN"}


class ReportError(Exception):
    """A message or report that must not be used. `str()` names the field, the value (cut) and the rule."""

    reason = "InvalidReport"


class IdentityMismatchError(ReportError):
    """The report is about another node than the agent at this address must be."""

    reason = "IdentityMismatch"


def decode_message(payload: bytes, expected_name: str) -> NodeReport | None:
    """Return the report in one message of a watch, None for a heartbeat.

    `expected_name` is the node name the agent must have; empty takes any. Raises `ReportError`.
    """
    try:
        message = pb.WatchNodeResourcesResponse.FromString(payload)
    except DecodeError as error:
        raise ReportError("the message cannot be read as WatchNodeResourcesResponse") from error
    return decode_report(message.report, expected_name) if message.HasField("report") else None


def decode_report(report: pb.NodeResourcesReport, expected_name: str) -> NodeReport:
    """Check one report and return it in the controller's own form. Raises `ReportError`."""
    if not is_node_name(report.node_name):
        raise ReportError(f"node_name {shown(report.node_name)} is not a node name of at most 63 characters")
    if expected_name and report.node_name != expected_name:
        raise IdentityMismatchError(f"the agent of node {expected_name!r} reports as {report.node_name!r}")
    if not 0 < len(report.instance_id) <= _MAX_TEXT:
        raise ReportError("instance_id is empty or longer than 1024 characters")
    if not 0 <= report.reserve_percent <= 100:
        raise ReportError(f"reserve_percent {report.reserve_percent} is not from 0 to 100")
    capacity, allocatable = _resources(report.capacity, report.allocatable)
    labels, managed = _labels(report)
    return NodeReport(
        node_name=report.node_name,
        instance_id=report.instance_id,
        revision=report.revision,
        capacity=capacity,
        allocatable=allocatable,
        labels=labels,
        managed_label_keys=managed,
        reserve_percent=report.reserve_percent,
        resources=tuple(_explanation(entry) for entry in _bounded("resources", report.resources)),
        host=HostInfo(**{fact: _text(f"host.{fact}", getattr(report.host, fact)) for fact in _HOST_FACTS}),
        addresses=_addresses(report.addresses),
        provider_id=_text("provider_id", report.provider_id),
        conditions=_conditions(report.conditions),
        agent_version=_text("agent_version", report.agent_version),
        observed_at=_time(report, "observe_time"),
    )


def _resources(capacity: Mapping[str, str], allocatable: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Check both maps; a missing or zero capacity would zero the Node and is refused."""
    _bounded("capacity", capacity)
    if capacity.keys() != allocatable.keys():
        names = sorted(capacity.keys() ^ allocatable.keys())
        raise ReportError(f"capacity and allocatable differ in their resources: {shown(', '.join(names))}")
    for name in _REQUIRED_RESOURCES:
        if name not in capacity:
            raise ReportError(f"capacity has no {name}")
    for name in capacity:
        if not _is_qualified(name):
            raise ReportError(f"capacity: {shown(name)} is not a resource name")
        total = _quantity(f"capacity[{name}]", capacity[name])
        if total.nanos == 0:
            raise ReportError(f"capacity[{name}] is zero: a failed probe, not a value")
        if _quantity(f"allocatable[{name}]", allocatable[name]).nanos > total.nanos:
            raise ReportError(f"allocatable[{name}] {allocatable[name]!r} is above the capacity {capacity[name]!r}")
    return dict(capacity), dict(allocatable)


def _quantity(field: str, text: str) -> Quantity:
    try:
        quantity = parse_quantity(text)
    except QuantityError as error:
        raise ReportError(f"{field} {shown(text)} {error}") from error
    if quantity.is_negative():
        raise ReportError(f"{field} {shown(text)} must not be negative")
    return quantity


def _labels(report: pb.NodeResourcesReport) -> tuple[dict[str, str], tuple[str, ...]]:
    labels = dict(_bounded("labels", report.labels).items())
    managed = tuple(_bounded("managed_label_keys", report.managed_label_keys))
    for key in (*labels, *managed):
        if not _is_qualified(key):
            raise ReportError(f"labels: {shown(key)} is not a label key")
        if not _may_manage(key):
            raise ReportError(f"labels: {shown(key)} is not a key an agent may manage")
    for key, value in labels.items():
        if value and not is_name_part(value):
            raise ReportError(f"labels[{key}] {shown(value)} is not a label value")
    if labels.get("kubernetes.io/hostname", report.node_name) != report.node_name:
        raise ReportError(f"labels[kubernetes.io/hostname] {labels['kubernetes.io/hostname']!r} is another node's name")
    return labels, managed


def _may_manage(key: str) -> bool:
    prefix = key.rpartition("/")[0]
    return key in _LABEL_KEYS or prefix == _LABEL_DOMAIN or prefix.endswith("." + _LABEL_DOMAIN)


def _is_qualified(key: str) -> bool:
    """Whether a key is what Kubernetes calls a qualified name: an optional DNS prefix, `/`, and a name part."""
    prefix, slash, name = key.rpartition("/")
    return (not slash or _PREFIX.fullmatch(prefix) is not None) and is_name_part(name)


def _addresses(addresses: Iterable[pb.NodeAddress]) -> tuple[NodeAddress, ...]:
    """Check the addresses: two of a kind make the API server fail with 500."""
    found: dict[str, NodeAddress] = {}
    for entry in addresses:
        kind, address = entry.type, entry.address
        if kind not in ("InternalIP", "Hostname"):
            continue
        if kind in found:
            raise ReportError(f"addresses: more than one {kind}")
        if not (_is_ip(address) if kind == "InternalIP" else is_node_name(address)):
            raise ReportError(f"addresses: {kind} {shown(address)} is not one")
        found[kind] = NodeAddress(kind, address)
    return tuple(found.values())


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _conditions(conditions: Iterable[pb.Condition]) -> tuple[HostCondition, ...]:
    found: dict[str, HostCondition] = {}
    for entry in _bounded("conditions", list(conditions)):
        if not _is_qualified(entry.type):
            raise ReportError(f"conditions: {shown(entry.type)} is not a condition type")
        if entry.type in found:
            raise ReportError(f"conditions: {entry.type} is there twice")
        if entry.reason and _CONDITION_REASON.fullmatch(entry.reason) is None:
            raise ReportError(f"conditions[{entry.type}].reason {shown(entry.reason)} is not one CamelCase word")
        found[entry.type] = HostCondition(
            type=entry.type,
            status=_STATUSES.get(entry.status, "Unknown"),
            reason=entry.reason,
            message=_text(f"conditions[{entry.type}].message", entry.message, _MAX_MESSAGE),
            last_transition_at=_time(entry, "last_transition_time"),
        )
    return tuple(found.values())


def _explanation(entry: pb.ResourceExplanation) -> ResourceExplanation:
    return ResourceExplanation(
        name=_text("resources.name", entry.name),
        source=_SOURCES.get(entry.source, "PROBED"),
        origin=_text("resources.origin", entry.origin, _MAX_ORIGIN),
        raw_value=entry.raw_value,
        adjustments=tuple(
            Adjustment(_text("resources.adjustments.reason", step.reason), step.value)
            for step in _bounded("resources.adjustments", entry.adjustments)
        ),
        capacity_value=entry.capacity_value,
        allocatable_value=entry.allocatable_value,
        observed_at=_time(entry, "observe_time"),
    )


def _text(field: str, text: str, limit: int = _MAX_TEXT) -> str:
    if len(text) > limit:
        raise ReportError(f"{field} has {len(text)} characters; at most {limit} are taken")
    return text


def _time(message: pb.NodeResourcesReport | pb.Condition | pb.ResourceExplanation, field: str) -> datetime | None:
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    stamp: Timestamp = getattr(message, field)
    try:
        return stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ReportError(f"{field} is not a time") from error


def _bounded(field: str, entries: S) -> S:
    if len(entries) > _MAX_ENTRIES:
        raise ReportError(f"{field} has {len(entries)} entries; at most {_MAX_ENTRIES} are taken")
    return entries
