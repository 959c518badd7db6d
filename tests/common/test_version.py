"""The reported version is the packaged one."""

import tomllib
from pathlib import Path

from common.version import VERSION


def test_version_is_the_packaged_one() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == VERSION
