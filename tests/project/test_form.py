"""Format, lint, types and layers: the checks of form are tests, so that nothing can pass the suite without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from devenv.toolchain import REPOSITORY

_TOOLS = Path(sys.executable).parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "--quiet", "."], id="ruff-check"),
        pytest.param(["ruff", "format", "--check", "--quiet", "."], id="ruff-format"),
        pytest.param(["mypy", "--no-error-summary"], id="mypy-strict"),
        pytest.param(["lint-imports", "--no-cache"], id="import-linter"),
    ],
)
def test_tool_finds_nothing(command: list[str]) -> None:
    answer = subprocess.run(
        [_TOOLS / command[0], *command[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, f"{' '.join(command)}\n{answer.stdout}{answer.stderr}"
