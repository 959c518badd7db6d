"""`python -m benchmarks [NAME…] [--quick] [-o table|json]`: measure and print one table.

Exit status 0 when every bound holds, 1 when one is missed or could not be measured, 2 for a mistake in the command.
"""

import importlib
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import click
from rich.console import Console
from rich.table import Table

from benchmarks.harness import FULL, QUICK, Row, Scale, not_measured
from benchmarks.processes import BenchmarkError
from devenv.errors import DevenvError

# In the order of the table; modules are imported when they are asked for, so that none loads what it does not need.
MODULES = {
    "probe": "benchmarks.nodes_probe",
    "calls": "benchmarks.nodes_calls",
    "start": "benchmarks.nodes_start",
    "change": "benchmarks.nodes_change",
    "fleet": "benchmarks.nodes_fleet",
    "tls-calls": "benchmarks.tls_calls",
    "tls-fleet": "benchmarks.tls_fleet",
    "snapshot-scan": "benchmarks.snapshots_scan",
    "snapshot-list": "benchmarks.snapshots_list",
    "snapshot-durable": "benchmarks.snapshots_durable",
    "snapshot-large-purge": "benchmarks.snapshots_large_purge",
    "snapshot-collect": "benchmarks.snapshots_collect",
    "deletion-watch": "benchmarks.deletion_watch",
    "deletion-answer": "benchmarks.deletion_answer",
    "deletion-everything": "benchmarks.deletion_everything",
    "deletion-start": "benchmarks.deletion_start",
    "seat-release": "benchmarks.seats_release",
    "seat-wake": "benchmarks.seats_wake",
    "seat-idle": "benchmarks.seats_idle",
}


@click.command(help=__doc__)
@click.argument("names", nargs=-1, type=click.Choice(list(MODULES)))
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a first look, not a result.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of each side, instead of 5 (2 with --quick).")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: Sequence[str], quick: bool, rounds: int | None, output: str) -> None:
    """Run the named benchmarks, or all."""
    scale = QUICK if quick else FULL
    if rounds is not None:
        scale = replace(scale, rounds=rounds)
    _allow_many_files()
    before = os.getloadavg()
    rows = [row for name in (names or MODULES) for row in _measure(name, scale)]
    machine = {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": before[0],
        "load_after": os.getloadavg()[0],
        "quick": quick,
        "rounds": scale.rounds,
    }
    if output == "json":
        print(json.dumps({"machine": machine, "rows": [row.to_json() for row in rows]}, indent=2))
    else:
        _print_table(rows, machine)
    sys.exit(0 if all(row.verdict == "met" for row in rows) else 1)


def _measure(name: str, scale: Scale) -> list[Row]:
    started = time.monotonic()
    click.echo(f"measuring {name} …", err=True)
    try:
        run = cast("Callable[[Scale], list[Row]]", importlib.import_module(MODULES[name]).run)
        rows = run(scale)
    except (BenchmarkError, DevenvError) as error:
        rows = [not_measured(name, name, "", "", str(error))]
    click.echo(f"measuring {name}: {time.monotonic() - started:.0f} s", err=True)
    return rows


def _allow_many_files() -> None:
    """Raise the limit on open files, for us and for what we start: a fleet needs three for each agent."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _print_table(rows: Sequence[Row], machine: Mapping[str, object]) -> None:
    table = Table(show_lines=True)
    for heading in ("what", "against", "measured", "must be", "verdict"):
        table.add_column(heading, overflow="fold")
    colours = {"met": "green", "missed": "red", "not measured": "yellow"}
    for row in rows:
        measured = f"{row.measured}\n{row.detail}" if row.detail else row.measured
        colour = colours[row.verdict]
        table.add_row(row.what, row.against or "-", measured, row.must_be, f"[{colour}]{row.verdict}[/{colour}]")
    console = Console()
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items()), highlight=False)


if __name__ == "__main__":
    main()
