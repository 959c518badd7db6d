"""What the commands print about the host: tables for people, JSON and YAML with the API's names for programs.

Why this exists: the tables may change with every version, the JSON may not; only this module knows either.
"""

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.text import Text

from agent.resources.capacity import HUGEPAGES_PREFIX, quantity_text
from cocoonstack.node.v1 import node_resources_pb2 as pb
from common.logging import printable
from common.printing import new_console, new_table, print_data


def print_report(report: pb.NodeResourcesReport, output: str) -> None:
    """Print a report as `table`, `json` or `yaml`."""
    if output != "table":
        print_data(MessageToDict(report, always_print_fields_with_no_presence=True), output)
        return
    console = new_console()
    host = report.host
    facts = (host.cpu_model, host.architecture, host.os_image, f"Linux {host.kernel_version}")
    console.print(Text(f"{report.node_name}  {', '.join(printable(fact) for fact in facts if fact)}", style="bold"))
    amounts = new_table("RESOURCE", "CAPACITY", "ALLOCATABLE", "FROM")
    for entry in report.resources:
        amounts.add_row(
            entry.name, report.capacity[entry.name], report.allocatable[entry.name], printable(entry.origin)
        )
    console.print(amounts)
    console.print(f"reserve  {report.reserve_percent} %", highlight=False)
    for address in report.addresses:
        console.print(Text(f"{address.type}  {address.address}"))
    for key, value in sorted(report.labels.items()):
        console.print(Text(f"label  {key}={value}"))
    for condition in report.conditions:
        if condition.status == pb.CONDITION_STATUS_TRUE:
            console.print(Text(f"{condition.type}  {printable(condition.message)}", style="yellow"))


def print_explanation(report: pb.NodeResourcesReport, resource: str | None) -> None:
    """Print how the numbers of one resource, or of all, come about."""
    console = new_console()
    for entry in report.resources:
        if resource is not None and entry.name != resource:
            continue
        source = "set by the operator" if entry.source == pb.RESOURCE_SOURCE_OVERRIDDEN else "read from the host"
        console.print(Text(f"{entry.name}  {source}: {printable(entry.origin)}", style="bold"))
        steps = new_table("STEP", "VALUE", _unit(entry.name).upper(), right=(1, 2))
        steps.add_row("raw", quantity_text(entry.name, entry.raw_value), str(entry.raw_value))
        for step in entry.adjustments:
            steps.add_row(step.reason, _signed(entry.name, step.value), f"{step.value:+d}")
        steps.add_row("allocatable", report.allocatable[entry.name], str(entry.allocatable_value))
        steps.add_row("capacity", report.capacity[entry.name], str(entry.capacity_value))
        console.print(steps)
        if entry.name == "memory":
            _print_overcommitment(console, report)


def _print_overcommitment(console: Console, report: pb.NodeResourcesReport) -> None:
    for condition in report.conditions:
        if condition.type == "CocoonMemoryOvercommitted" and condition.status == pb.CONDITION_STATUS_TRUE:
            console.print(Text(printable(condition.message), style="yellow"))


def _unit(resource: str) -> str:
    if resource == "cpu":
        return "millicores"
    is_bytes = resource in {"memory", "ephemeral-storage"} or resource.startswith(HUGEPAGES_PREFIX)
    return "bytes" if is_bytes else "count"


def _signed(resource: str, value: int) -> str:
    text = quantity_text(resource, value)
    return text if text.startswith("-") else f"+{text}"
