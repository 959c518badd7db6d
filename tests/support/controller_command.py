"""Runs a command of the controller as a person does, against a cluster and its agents."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from devenv.cocoon_programs import AgentProcess, environment_with

PROGRAM = Path(sys.executable).with_name("cocoon-node-controller")


def run_command(
    kubeconfig: Path, agents: Iterable[AgentProcess], *words: str, settings: Mapping[str, str] | None = None
) -> str:
    """Return what `cocoon-node-controller WORDS…` printed; it must succeed."""
    own = {
        "COCOON_NODE_CONTROLLER_KUBECONFIG": str(kubeconfig),
        "COCOON_NODE_CONTROLLER_AGENTS": ",".join(agent.endpoint for agent in agents),
    }
    answer = subprocess.run(
        [PROGRAM, *words],
        env=environment_with(own | dict(settings or {})),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout
