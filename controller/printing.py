"""What the commands print about Nodes: tables for people, JSON and YAML for programs.

Why this exists: the tables may change with every version, the JSON may not; only this module knows either.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.measure import Measurement

from common.logging import printable
from common.printing import new_console, new_table, print_data
from common.quantity import QuantityError, parse_quantity
from controller.commands import FleetNode
from controller.nodes.model import CONTROLLER
from controller.nodes.wanted import AGENT_VERSION_PREFIX

_GOOD = frozenset({"CocoonSnapshotCacheReady"})
"""Conditions without a column that should be true."""

_LONGEST_ROW = 10_000


def print_nodes(fleet: Sequence[FleetNode], output: str) -> None:
    """Print the fleet as `table`, `json` or `yaml`."""
    if output != "table":
        print_data([_node_object(node) for node in fleet], output)
        return
    if not fleet:
        click.echo("no Node of ours in this cluster")
        return
    now = datetime.now(UTC)
    rows = [_row(node, now) for node in fleet]
    # Most fleets have no huge pages, and the terminal is narrow.
    columns = [name for name in rows[0] if name != "HUGEPAGES" or any(row[name] != "-" for row in rows)]
    table = new_table(*columns)
    for row in rows:
        table.add_row(*(printable(row[name]) for name in columns))
    console = new_console()
    # A row that is too long for the terminal goes on in the next line, as kubectl's does; cells cut in words are worse.
    unbounded = console.options.update(width=_LONGEST_ROW)
    console.width = max(console.width, Measurement.get(console, unbounded, table).maximum)
    console.print(table)


def _row(node: FleetNode, now: datetime) -> dict[str, str]:
    live = node.live
    return {
        "NODE": live.name,
        "READY": _status(node, "Ready"),
        "AGENT": _agent(node),
        "VERSION": _version(node) or "-",
        "LEASE": _lease(node, now),
        "POOL": live.labels.get("cocoonstack.io/pool", "-"),
        "CPU": _amount(node, "cpu"),
        "MEMORY": _gibibytes(node, "memory"),
        "STORAGE": _gibibytes(node, "ephemeral-storage"),
        "HUGEPAGES": _hugepages(node),
        "PODS": live.allocatable.get("pods", "-"),
        "NOTICE": ", ".join(_notices(node)) or "-",
    }


def _node_object(node: FleetNode) -> dict[str, Any]:
    live, lease = node.live, node.lease
    shown: dict[str, Any] = {
        "name": live.name,
        "registeredByUs": live.is_ours,
        "labels": dict(sorted(live.labels.items())),
        "capacity": dict(sorted(live.capacity.items())),
        "allocatable": dict(sorted(live.allocatable.items())),
        "conditions": [
            {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message} for c in live.conditions
        ],
    }
    if version := _version(node):
        shown["agentVersion"] = version
    if lease is not None:
        renewed = lease.renewed_at.isoformat() if lease.renewed_at else None
        shown["lease"] = {"holder": lease.holder, "renewTime": renewed}
    return shown


def _status(node: FleetNode, condition_type: str) -> str:
    condition = node.live.condition(condition_type)
    return condition.status if condition else "-"


def _agent(node: FleetNode) -> str:
    condition = node.live.condition("CocoonAgentReachable")
    if condition is None:
        return "-"
    return "answers" if condition.status == "True" else condition.reason or condition.status


def _version(node: FleetNode) -> str:
    """The agent's version as we wrote it; on Nodes of others the system information is theirs."""
    version = node.live.node_info.get("kubeletVersion", "")
    return version.removeprefix(AGENT_VERSION_PREFIX) if version.startswith(AGENT_VERSION_PREFIX) else ""


def _lease(node: FleetNode, now: datetime) -> str:
    if node.lease is None or node.lease.renewed_at is None:
        return "-"
    age = f"{max(0, int((now - node.lease.renewed_at).total_seconds()))}s"
    return age if node.lease.holder == CONTROLLER else f"{age} by {node.lease.holder}"


def _amount(node: FleetNode, resource: str) -> str:
    return f"{node.live.allocatable.get(resource, '-')}/{node.live.capacity.get(resource, '-')}"


def _gibibytes(node: FleetNode, resource: str) -> str:
    """Both numbers in Gi, rounded down to a tenth, because one cannot compare 20221201612 with 24684084Ki by eye."""
    try:
        tenths = [
            parse_quantity(quantities[resource]).bytes() * 10 >> 30
            for quantities in (node.live.allocatable, node.live.capacity)
        ]
    except (KeyError, QuantityError):
        return _amount(node, resource)
    return "/".join(f"{number // 10}.{number % 10}" for number in tenths) + "Gi"


def _hugepages(node: FleetNode) -> str:
    names = sorted(name for name in node.live.capacity if name.startswith("hugepages-"))
    return ", ".join(f"{name.removeprefix('hugepages-')} {_gibibytes(node, name)}" for name in names) or "-"


def _notices(node: FleetNode) -> list[str]:
    """Every condition that is not as it should be, but those with a column of their own."""
    shown = {"Ready", "CocoonAgentReachable"}
    bad = sorted(c.type for c in node.live.conditions if c.status == "True" and c.type not in shown | _GOOD)
    return bad + sorted(f"{c.type}={c.status}" for c in node.live.conditions if c.type in _GOOD and c.status != "True")
