"""The word that a program is ready: there while it serves, and never a dead program's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.program import StartError, no_stale_ready_file, write_ready_file


def test_the_file_is_there_while_the_program_serves(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_text("a program that was killed\n")
    with no_stale_ready_file(str(path), "READY"):
        assert not path.exists()
        write_ready_file(str(path), {"http": "here"}, "READY")
        assert json.loads(path.read_text()) == {"http": "here"}
        assert [each.name for each in tmp_path.iterdir()] == ["ready"]
    assert not path.exists()


def test_no_file_is_asked_for() -> None:
    with no_stale_ready_file(None, "READY"):
        write_ready_file(None, {}, "READY")


@pytest.mark.parametrize(
    ("name", "rule"), [("directory", "Is a directory"), ("file/below", "Not a directory")], ids=str
)
def test_a_file_that_cannot_be_taken_away_stops_the_start(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    path = str(tmp_path / name)
    with pytest.raises(StartError) as refused, no_stale_ready_file(path, "READY"):
        pytest.fail("it must not start")
    assert str(refused.value) == f'READY="{path}": {rule}'
