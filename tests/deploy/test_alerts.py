"""The alert rules: every metric and label is one the programs export, every alert is explained, promtool agrees."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devenv import promtool, reference
from devenv.toolchain import REPOSITORY

_RULES = REPOSITORY / "deploy/alerts/cocoon-node.rules.yaml"
_PAGE = (REPOSITORY / "docs/operations.md").read_text()
_ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(_RULES.read_text())["groups"] for rule in group["rules"]
]
_EXPORTED = {metric.name: metric for metric in reference.metrics("agent", "controller", "common")}
_HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
# Added by Prometheus to what it collects, and by histograms to their buckets.
_LABELS_OF_OTHERS = {"instance", "job", "le"}


def _metric(name: str) -> reference.Metric | None:
    """The family a name in an expression belongs to."""
    if name in _EXPORTED:
        return _EXPORTED[name]
    family = next((name.removesuffix(part) for part in _HISTOGRAM_PARTS if name.endswith(part)), "")
    metric = _EXPORTED.get(family)
    return metric if metric is not None and metric.kind == "histogram" else None


def test_there_is_something_to_check() -> None:
    assert len(_ALERTS) == len({alert["alert"] for alert in _ALERTS}) >= 20


@pytest.mark.parametrize("alert", _ALERTS, ids=lambda alert: alert["alert"])
def test_alert_is_about_metrics_and_labels_that_exist(alert: dict[str, Any]) -> None:
    names = re.findall(r"\bcocoon_node_\w+", alert["expr"])
    metrics = [_metric(name) for name in names]
    assert names
    assert [name for name, metric in zip(names, metrics, strict=True) if metric is None] == []

    labels = {label for metric in metrics if metric is not None for label in metric.labels} | _LABELS_OF_OTHERS
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", alert["expr"]))
    used |= {label for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", alert["expr"]) for label in group.split(", ")}
    used |= set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
    assert used <= labels


@pytest.mark.parametrize("alert", _ALERTS, ids=lambda alert: alert["alert"])
def test_alert_says_how_bad_it_is_and_the_page_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert f"`{alert['alert']}`" in _PAGE


def test_the_page_knows_no_other_alerts() -> None:
    explained = set(re.findall(r"`(CocoonNode[A-Z]\w+)`", _PAGE))
    assert explained == {alert["alert"] for alert in _ALERTS}


def test_promtool_takes_the_rules_and_they_fire_when_they_should(tmp_path: Path) -> None:
    program = promtool.find()
    if program is None:
        pytest.skip("no promtool on PATH, and Debian's prometheus package cannot be fetched here")
    cases = tmp_path / "cases.yaml"
    cases.write_text((Path(__file__).parent / "alert_cases.yaml").read_text().replace("RULES", str(_RULES)))

    for what, file in (("check", _RULES), ("test", cases)):
        command: list[str | Path] = [program, what, "rules", file]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
