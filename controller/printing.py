"""What the commands print: tables for people, JSON and YAML for programs.

Why this exists: the tables may change with every version, the JSON may not; only this module knows either.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.logging import printable
from controller.commands import FleetNode
from controller.nodes.model import CONTROLLER

# Other readers of YAML take 1e3, 0x10 or `on` for what they are not; only plain words go without quotes.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*[A-Za-z0-9]")
_WORDS_WITH_A_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_PIPE_WIDTH = 200


class _Dumper(yaml.SafeDumper):
    """Quotes every text that some reader could take for a number, a time or a truth value."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS_WITH_A_MEANING
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def print_yaml_documents(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print one YAML document each."""
    for document in documents:
        click.echo("---")
        click.echo(_yaml(document), nl=False)


def print_nodes(fleet: Sequence[FleetNode], output: str) -> None:
    """Print the fleet as `table`, `json` or `yaml`."""
    if output != "table":
        _print_data([_node_object(node) for node in fleet], output)
        return
    if not fleet:
        click.echo("no Node of ours in this cluster")
        return
    now = datetime.now(UTC)
    table = _table("NODE", "READY", "AGENT", "LEASE", "POOL", "CPU", "MEMORY", "STORAGE", "HUGEPAGES", "PODS", "NOTICE")
    for node in fleet:
        live = node.live
        table.add_row(
            *(
                printable(cell)
                for cell in (
                    live.name,
                    _status(node, "Ready"),
                    _agent(node),
                    _lease(node, now),
                    live.labels.get("cocoonstack.io/pool", "-"),
                    _amount(node, "cpu"),
                    _amount(node, "memory"),
                    _amount(node, "ephemeral-storage"),
                    _hugepages(node),
                    live.allocatable.get("pods", "-"),
                    ", ".join(_notices(node)) or "-",
                )
            )
        )
    _console().print(table)


def print_settings(values: Sequence[Mapping[str, str | None]], output: str) -> None:
    """Print effective settings with their sources."""
    if output != "table":
        _print_data(list(values), output)
        return
    table = _table("VARIABLE", "VALUE", "SOURCE")
    for value in values:
        shown = value["value"]
        table.add_row(
            *(printable(cell) for cell in (value["variable"], "-" if shown is None else shown, value["source"]))
        )
    _console().print(table)


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


def _lease(node: FleetNode, now: datetime) -> str:
    if node.lease is None or node.lease.renewed_at is None:
        return "-"
    age = f"{max(0, int((now - node.lease.renewed_at).total_seconds()))}s"
    return age if node.lease.holder == CONTROLLER else f"{age} by {node.lease.holder}"


def _amount(node: FleetNode, resource: str) -> str:
    return f"{node.live.allocatable.get(resource, '-')}/{node.live.capacity.get(resource, '-')}"


def _hugepages(node: FleetNode) -> str:
    names = sorted(name for name in node.live.capacity if name.startswith("hugepages-"))
    return ", ".join(f"{name.removeprefix('hugepages-')} {_amount(node, name)}" for name in names) or "-"


def _notices(node: FleetNode) -> list[str]:
    """Every condition that is true and should not be."""
    good = {"Ready", "CocoonAgentReachable"}
    return sorted(c.type for c in node.live.conditions if c.status == "True" and c.type not in good)


def _print_data(data: object, output: str) -> None:
    click.echo(json.dumps(data, indent=2) if output == "json" else _yaml(data), nl=output == "json")


def _yaml(data: object) -> str:
    return str(
        yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1000, allow_unicode=True)
    )


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    return table


def _console() -> Console:
    # Piped output has no width of its own, and wrapped columns are useless to whoever reads the pipe.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console
