"""The agent's command, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devenv.cocoon_programs import environment_with

_COMMAND = Path(sys.executable).with_name("cocoon-node-agent")
_FIXTURES = Path(__file__).parent / "fixtures"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_agent() -> Run:
    """A function that runs a command to its end: `run_agent("probe", "-o", "json", VK_NODE_CPU="3")`."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_COMMAND, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment_with(variables),
        )

    return run


@pytest.fixture
def fixture_host(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """A function that returns the variables that make the agent read a fixture host."""

    def variables(host: str) -> dict[str, str]:
        tree = _FIXTURES / host
        return {
            "VK_NODE_NAME": "host-1",
            "VK_NODE_IP": "192.0.2.1",
            "COCOON_NODE_PROCFS": f"{tree}/proc",
            "COCOON_NODE_SYSFS": f"{tree}/sys",
            "COCOON_NODE_ETCFS": f"{tree}/etc",
            "COCOON_ROOT_DIR": str(tmp_path),
        }

    return variables
