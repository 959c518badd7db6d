"""Resolves the requirement files in `requirements/` from `pyproject.toml`: every package pinned, every file hashed.

No address of a registry is written into them: where packages come from is the business of whoever installs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from devenv.errors import DevenvError
from devenv.progress import step
from devenv.toolchain import REPOSITORY, install_pinned

REQUIREMENTS = REPOSITORY / "requirements"

# What each lock is resolved from: the extras of the project, or a file of its own for a tool outside the environment.
EXTRAS = {"agent": ("agent",), "controller": ("controller",), "dev": ("agent", "controller", "dev")}
TOOLS = ("build", "go", "uv")

_OPTIONS = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header")


def compile_all() -> None:
    """Write every lock again; versions already locked stay as far as the requirements allow."""
    uv = install_pinned("uv", "the resolver") / "bin" / "uv"
    for name, extras in EXTRAS.items():
        _compile(uv, name, ["pyproject.toml", *(f"--extra={extra}" for extra in extras)])
    for tool in TOOLS:
        _compile(uv, tool, [f"requirements/{tool}.in"])


def _compile(uv: Path, name: str, inputs: list[str]) -> None:
    command: list[str | Path] = [uv, "pip", "compile", "--quiet", *_OPTIONS, *inputs, "-o", f"requirements/{name}.txt"]
    with step(f"resolving requirements/{name}.txt"):
        answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["the resolver said nothing"]
        raise DevenvError(f"requirements/{name}.txt: {lines[-1]}")
