"""The reference pages say what the code says, and the pages' links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from devenv import reference
from devenv.toolchain import REPOSITORY

_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?:#[^)]*)?\)")
_PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_reference_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert "<!-- table: " in text
    assert reference.with_tables(text) == text, "run ./run docs"


def test_metrics_are_found_in_the_source() -> None:
    found = {metric.name: metric for metric in reference.metrics("agent", "controller")}
    assert found["cocoon_node_calls_total"].labels == ("method", "code")
    assert found["cocoon_node_nodes"].kind == "gauge"


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_to_files(page: Path) -> None:
    missing = [link for link in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []
