"""The API's files: linted, compatible with what was committed, and in step with the generated modules."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from devenv import proto
from devenv.toolchain import REPOSITORY


def test_buf_lint_finds_nothing() -> None:
    assert proto.lint_findings() == ""


def test_nothing_breaks_the_committed_descriptor_set() -> None:
    assert proto.breaking_changes() == ""


def test_generated_files_are_what_the_sources_generate(tmp_path: Path) -> None:
    proto.generate(tmp_path)

    fresh, committed = proto.generated_files(tmp_path), proto.generated_files(proto.PROTO)

    assert sorted(fresh) == sorted(committed)
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run ./run proto and commit the result"


def test_a_change_that_breaks_clients_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: a field whose number changes must be reported."""
    shutil.copytree(proto.PROTO, tmp_path / "proto")
    shutil.copy(REPOSITORY / "buf.yaml", tmp_path)
    source = tmp_path / "proto/cocoonstack/node/v1/node_resources.proto"
    text = source.read_text()
    assert "string node_name = 1;" in text
    source.write_text(text.replace("string node_name = 1;", "string node_name = 101;"))
    monkeypatch.setattr(proto, "REPOSITORY", tmp_path)

    assert "node_name" in proto.breaking_changes()
