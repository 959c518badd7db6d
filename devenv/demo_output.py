"""What the demonstration shows: tables for people, the API server's own bytes for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from cocoonstack.node.v1 import node_resources_pb2

_WIDTH = 120


def say_report(report: node_resources_pb2.NodeResourcesReport, address: str) -> None:
    """Show the agent's own answer on standard error."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDTH)
    console.print(f"the agent at {address} answers", style="bold", highlight=False)
    table = Table("resource", "capacity", "allocatable", box=None)
    # A path that was cut could not be looked at.
    table.add_column("read from", overflow="fold")
    origins = {resource.name: resource.origin for resource in report.resources}
    for name in sorted(report.capacity):
        table.add_row(name, report.capacity[name], report.allocatable[name], origins.get(name, ""))
    console.print(table)


def print_node(text: str, output: str) -> None:
    """Print a Node on standard output: `json` is the server's answer itself, `yaml` the same, `table` the gist."""
    if output == "json":
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
    elif output == "yaml":
        sys.stdout.write(yaml.safe_dump(json.loads(text), sort_keys=False))
    else:
        _print_table(json.loads(text))
    sys.stdout.flush()


def _print_table(node: dict[str, Any]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    status, metadata = node["status"], node["metadata"]
    console.print(f"Node {metadata['name']}", style="bold", highlight=False)
    table = Table("resource", "capacity", "allocatable", box=None)
    for name, quantity in sorted(status["capacity"].items()):
        table.add_row(name, quantity, status["allocatable"].get(name, ""))
    console.print(table)
    console.print("\nlabels", style="bold")
    for key, value in sorted(metadata.get("labels", {}).items()):
        console.print(f"  {key}={value}", highlight=False)
    console.print("\nconditions", style="bold")
    for condition in status.get("conditions", []):
        console.print(f"  {condition['type']}={condition['status']} ({condition.get('reason', '')})", highlight=False)
