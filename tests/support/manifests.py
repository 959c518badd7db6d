"""What `deploy/` renders to, by the same program an operator uses."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from devenv import programs
from devenv.toolchain import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
INSTALLABLE = tuple(
    str(path.parent.relative_to(DEPLOY)) for path in sorted(DEPLOY.rglob("kustomization.yaml"))
)  # `base`, `overlays/tls`, …


def kubectl() -> Path:
    """Return the pinned kubectl, built when it is missing."""
    return programs.ensure(["kubectl"])["kubectl"]


@cache
def rendered(folder: str) -> tuple[dict[str, Any], ...]:
    """Return the objects of a folder below `deploy/`."""
    command: list[str | Path] = [kubectl(), "kustomize", DEPLOY / folder]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return tuple(yaml.safe_load_all(answer.stdout))


def find(folder: str, kind: str, name: str) -> dict[str, Any]:
    """Return one object of a folder."""
    return next(each for each in rendered(folder) if (each["kind"], each["metadata"]["name"]) == (kind, name))
