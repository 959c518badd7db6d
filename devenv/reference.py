"""The reference tables of `docs/`, made from the code: settings of both programs, metrics of both programs.

Why this exists: a table kept by hand is wrong after a week. `./run docs` writes the tables between the markers of a
page; a check compares them. Metrics are found in the source, so that one exported only now and then is listed too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agent import config as agent_config
from common.settings import Setting
from controller import config as controller_config
from devenv.errors import DevenvError
from devenv.toolchain import REPOSITORY

PAGES = (REPOSITORY / "docs/configuration.md", REPOSITORY / "docs/metrics.md")
_BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram"}


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """One family as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def write_tables() -> list[Path]:
    """Bring every page up to date; returns the pages that changed."""
    changed = []
    for page in PAGES:
        before = page.read_text()
        after = with_tables(before)
        if after != before:
            page.write_text(after)
            changed.append(page)
    return changed


def with_tables(text: str) -> str:
    """Return a page with the tables between its markers made anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}{_table(block['name'])}{block[3]}", text)


def metrics(*rooms: str) -> list[Metric]:
    """Return the metric families that the source below the given folders defines, sorted by name."""
    found = {}
    for room in rooms:
        for path in sorted((REPOSITORY / room).rglob("*.py")):
            for metric in _metrics_in(ast.parse(path.read_text())):
                found[metric.name] = metric
    return sorted(found.values())


def _table(name: str) -> str:
    match name:
        case "agent-settings":
            return _settings(agent_config.SETTINGS)
        case "controller-settings":
            return _settings(controller_config.SETTINGS)
        case "agent-metrics":
            return _metric_rows(metrics("agent"))
        case "controller-metrics":
            return _metric_rows(metrics("controller"))
    raise DevenvError(f"no such table: {name}")


def _settings(table: Iterable[Setting]) -> str:
    rows = []
    for setting in table:
        default = setting.default
        shown = "computed" if callable(default) else "unset" if not default else f"`{default}`"
        rows.append((f"`{setting.variable}`", f"`{setting.option}`", shown, setting.help, setting.rule))
    return _rows(("variable", "option", "default", "meaning", "rule"), rows)


def _metric_rows(found: Iterable[Metric]) -> str:
    rows = [
        (f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in metric.labels) or "-", metric.help)
        for metric in found
    ]
    return _rows(("metric", "type", "labels", "meaning"), rows)


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _metrics_in(tree: ast.Module) -> Iterator[Metric]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        kind = _KINDS.get(node.func.id.removesuffix("MetricFamily"))
        texts = [_literal(argument) for argument in node.args]
        if kind is None or len(texts) < 2 or not isinstance(texts[0], str) or not isinstance(texts[1], str):
            continue
        labels = next((_literal(keyword.value) for keyword in node.keywords if keyword.arg == "labels"), None)
        if labels is None and len(texts) > 2 and not node.func.id.endswith("MetricFamily"):
            labels = texts[2]
        name = texts[0]
        if kind == "counter" and not name.endswith("_total"):
            name += "_total"
        yield Metric(name, kind, tuple(labels) if isinstance(labels, list | tuple) else (), texts[1])


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
