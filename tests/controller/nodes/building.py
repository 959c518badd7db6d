"""Reports, live Nodes and a small model of the API server for the tests of this room."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from controller.nodes.conflicts import FieldMemory, ceded_fields
from controller.nodes.model import (
    CONTROLLER,
    REGISTERED_BY,
    FieldOwner,
    Instant,
    LiveCondition,
    LiveLease,
    LiveNode,
)
from controller.nodes.plan import NodeSettings, Plan, PlanInput, memory_after, plan_node
from controller.nodes.report import HostInfo, NodeAddress, NodeReport
from controller.nodes.steps import Step

MANAGED_LABELS = (
    "cocoonstack.io/pool",
    "cocoonstack.io/snapshot-cpu-class",
    "node-role.kubernetes.io/cocoon-vm",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
)
START = datetime(2026, 1, 1, tzinfo=UTC)


def instant(seconds: float = 0.0) -> Instant:
    """The moment `seconds` after the tests' beginning of time, on both clocks."""
    return Instant(START + timedelta(seconds=seconds), 1000.0 + seconds)


def report(name: str = "host-1", **changes: Any) -> NodeReport:  # noqa: ANN401 - any field of a report
    """A sane report of a host with 32 CPUs, with the given fields changed."""
    sane = NodeReport(
        node_name=name,
        instance_id="instance-1",
        revision=1,
        capacity={"cpu": "32", "memory": "131927504Ki", "ephemeral-storage": "3906250Ki", "pods": "256"},
        allocatable={"cpu": "25", "memory": "108075011276", "ephemeral-storage": "1250Mi", "pods": "256"},
        labels={
            "cocoonstack.io/pool": "default",
            "node-role.kubernetes.io/cocoon-vm": "",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        },
        managed_label_keys=MANAGED_LABELS,
        host=HostInfo("A CPU", "amd64", "6.1.0", "Debian 12", "boot-1", f"machine-{name}", "system-1"),
        addresses=(NodeAddress("InternalIP", "192.0.2.10"), NodeAddress("Hostname", name)),
        agent_version="0.1.0",
    )
    return replace(sane, **changes)


def with_class(given: NodeReport, value: str) -> NodeReport:
    """The report with a snapshot CPU class."""
    return replace(given, labels={**given.labels, "cocoonstack.io/snapshot-cpu-class": value})


def owner(manager: str, *fields: str, operation: str = "Update", subresource: str = "") -> FieldOwner:
    """An entry of the managed fields."""
    return FieldOwner(manager, operation, subresource, frozenset(fields))


_ALL_KINDS = ("capacity", "allocatable")


@dataclass
class ModelNode:
    """A Node in a model of server-side apply: values of fields and who owns them.

    It knows what the plan relies on: an apply takes off what its manager no longer names unless somebody else owns it,
    an update takes ownership of what it changes from everybody, a removal ends all ownership.
    """

    name: str
    uid: str = "uid-1"
    values: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, LiveCondition] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    provider_id: str = ""
    owned: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)
    version: int = 1

    def live(self) -> LiveNode:
        """The Node as a reader sees it."""

        def of(kind: str) -> dict[str, str]:
            prefix = f"{kind}:"
            return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}

        return LiveNode(
            self.name,
            self.uid,
            str(self.version),
            labels=of("label"),
            annotations=dict(self.annotations),
            provider_id=self.provider_id,
            capacity=of("capacity"),
            allocatable=of("allocatable"),
            conditions=tuple(self.conditions.values()),
            addresses=tuple(NodeAddress(kind, value) for kind, value in of("address").items()),
            node_info=of("nodeInfo"),
            owners=tuple(
                FieldOwner(manager, operation, sub, frozenset(fields))
                for (manager, operation, sub), fields in self.owned.items()
                if fields
            ),
        )

    def update(self, manager: str, name: str, value: str | None) -> None:
        """Somebody writes (or removes, None) one field with an ordinary update."""
        if self.values.get(name) == value:
            return
        self.version += 1
        for fields in self.owned.values():
            fields.discard(name)
        if value is None:
            self.values.pop(name, None)
        else:
            self.values[name] = value
            self._entry(manager, "Update", "").add(name)

    def co_own(self, manager: str, name: str) -> None:
        """Somebody writes the value that is there already, by an apply of their own."""
        self._entry(manager, "Apply", "").add(name)
        self.version += 1

    def set_condition(self, manager: str, condition: LiveCondition) -> None:
        """Somebody writes a condition."""
        self.version += 1
        self.conditions[condition.type] = condition
        self._entry(manager, "Update", "status").add(f"condition:{condition.type}")

    def send(self, step: Step) -> None:
        """Do what the API server does with one of our requests."""
        wanted_version = step.body["metadata"].get("resourceVersion")
        assert wanted_version in (None, "", str(self.version)), "a request with an old version would be refused"
        assert step.body["metadata"].get("uid") in (None, self.uid)
        sub = "status" if step.path.endswith("/status") else ""
        before = self.live()
        if step.verb == "merge-patch":
            self._merge(step)
        else:
            assert step.verb == "apply"
            self._apply(step, sub)
        if self.live() != replace(before, resource_version=str(self.version)):
            self.version += 1

    def _merge(self, step: Step) -> None:
        if "spec" in step.body:
            assert not self.provider_id
            self.provider_id = step.body["spec"]["providerID"]
        for name, value in _fields_of(step.body).items():
            assert value is None
            self.update(step.field_manager, name, None)

    def _apply(self, step: Step, sub: str) -> None:
        assert "spec" not in step.body, "spec never appears in an apply"
        wanted = {name: value for name, value in _fields_of(step.body).items() if value is not None}
        conditions = {each["type"]: each for each in step.body.get("status", {}).get("conditions", ())}
        names = set(wanted) | {f"condition:{kind}" for kind in conditions}
        entry = self._entry(step.field_manager, "Apply", sub)
        for name in entry - names:
            entry.discard(name)
            if not any(name in fields for fields in self.owned.values()):
                self.values.pop(name, None)
                self.conditions.pop(name.removeprefix("condition:"), None)
        for name, value in wanted.items():
            if self.values.get(name) != value:
                for fields in self.owned.values():
                    fields.discard(name)
            self.values[name] = value
        for kind, body in conditions.items():
            assert "lastHeartbeatTime" not in body
            self.conditions[kind] = LiveCondition(
                kind, body["status"], body["reason"], body["message"], body["lastTransitionTime"]
            )
        entry |= names

    def _entry(self, manager: str, operation: str, sub: str) -> set[str]:
        return self.owned.setdefault((manager, operation, sub), set())


def _fields_of(body: Mapping[str, Any]) -> dict[str, str | None]:
    fields: dict[str, str | None] = {f"label:{key}": value for key, value in body["metadata"].get("labels", {}).items()}
    status = body.get("status", {})
    for kind in (*_ALL_KINDS, "nodeInfo"):
        fields.update({f"{kind}:{key}": value for key, value in status.get(kind, {}).items()})
    addresses = status.get("addresses", ())
    assert len({each["type"] for each in addresses}) == len(addresses), "two of a kind make the API server fail"
    fields.update({f"address:{each['type']}": each["address"] for each in addresses})
    return fields


class ModelCluster:
    """One node name in a model cluster, with everything that plans are made from and what is remembered."""

    def __init__(self, node: ModelNode | None = None, *, settings: NodeSettings | None = None) -> None:
        self.node = node
        self.settings = settings or NodeSettings()
        self.memory = FieldMemory(ceded=ceded_fields(node.live() if node else None))
        self.lease: LiveLease | None = None
        self.seconds = 0.0
        self.writes = 0
        self._uids = itertools.count(2)

    def restart_controller(self) -> None:
        """Forget what only memory knows."""
        self.memory = FieldMemory(ceded=ceded_fields(self.node.live() if self.node else None))

    def plan(self, given: NodeReport | None, *, reachable: bool = True, silence_reason: str = "AgentSilent") -> Plan:
        """The plan of this moment."""
        return plan_node(
            PlanInput(
                name=self.node.name if self.node else (given.node_name if given else "host-1"),
                report=given,
                reachable=reachable,
                live=self.node.live() if self.node else None,
                now=instant(self.seconds),
                silence_reason=silence_reason,
                lease=self.lease,
                settings=self.settings,
                memory=self.memory,
            )
        )

    def converge(self, given: NodeReport | None, *, reachable: bool = True) -> list[Plan]:
        """Plan and write, as the writer does, until there is nothing to do; the plans, the last one without steps."""
        plans = []
        for _ in range(8):
            plan = self.plan(given, reachable=reachable)
            plans.append(plan)
            written: frozenset[str] = frozenset()
            for step in plan.steps:
                written |= step.writes
                self._send(step)
            if self.node is not None:
                self.memory = memory_after(plan, self.memory, self.node.live(), instant(self.seconds), written=written)
            if not plan.steps:
                return plans
        raise AssertionError(f"no end of writing: {[step.reason for step in plans[-1].steps]}")

    def _send(self, step: Step) -> None:
        self.writes += 1
        if step.verb == "create":
            assert self.node is None
            metadata = step.body["metadata"]
            assert "labels" not in metadata
            self.node = ModelNode(
                metadata["name"],
                uid=f"uid-{next(self._uids)}",
                annotations=dict(metadata["annotations"]),
                provider_id=step.body.get("spec", {}).get("providerID", ""),
            )
            return
        assert self.node is not None
        live = self.node.live()
        present = {name for name, _ in live.fields()}
        if step.removes and not step.removes & present:
            return
        assert step.requires <= present
        metadata = dict(step.body["metadata"])
        if "resourceVersion" in metadata:
            metadata["resourceVersion"] = live.resource_version
        self.node.send(replace(step, body={**step.body, "metadata": metadata}))


def our_node(name: str = "host-1", **changes: Any) -> LiveNode:  # noqa: ANN401 - any field of a Node
    """A Node that we registered and that has nothing on it yet."""
    return replace(LiveNode(name, "uid-1", "7", annotations={REGISTERED_BY: CONTROLLER}), **changes)


def plan_for(
    given: NodeReport | None,
    live: LiveNode | None,
    *,
    reachable: bool = True,
    lease: LiveLease | None = None,
    settings: NodeSettings | None = None,
    memory: FieldMemory | None = None,
    seconds: float = 0.0,
    silence_reason: str = "",
) -> Plan:
    """The plan for a live Node made by hand."""
    return plan_node(
        PlanInput(
            name=live.name if live else (given.node_name if given else "host-1"),
            report=given,
            reachable=reachable,
            live=live,
            now=instant(seconds),
            silence_reason=silence_reason,
            lease=lease,
            settings=settings or NodeSettings(),
            memory=memory or FieldMemory(ceded=ceded_fields(live)),
        )
    )
