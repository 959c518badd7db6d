"""Builds the two container images without a container engine, and says what is in them.

Package registries are the one thing every developer's machine reaches, so the image that the Dockerfiles start from is
made here: a minimal Debian with its Python, under a name of its own that is given as `PYTHON`. Everything else is the
Dockerfiles' own doing. `buildah` keeps layers in our cache, by Dockerfile, lock and sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devenv.errors import DevenvError
from devenv.progress import step
from devenv.toolchain import REPOSITORY, cache_directory, exclusive

NAMES = ("agent", "controller")
TOOLS = ("buildah", "debootstrap")
INSTALL = "apt-get install --no-install-recommends buildah debootstrap"

# What the official image of a slim Python is made of, as far as the Dockerfiles care.
_SUITE = "bookworm"
_PACKAGES = ("ca-certificates", "python3-minimal", "python3-venv")
# Its makers leave these out too.
_LEFT_OUT = ("var/cache/apt", "var/lib/apt/lists", "usr/share/man", "usr/share/locale", "usr/share/info")
# Each build of changed sources leaves about ten beside those that are used again; then all is built anew.
_MOST_LAYERS = 200
_CERTIFICATES = Path("/etc/ssl/certs")


@dataclass(frozen=True, slots=True)
class Image:
    """One built image: its name (`agent`, `controller`), its root as a directory nobody may write to, and its size.

    `config` is the image's own, as an engine reads it: `User`, `Env`, `Entrypoint`, `Cmd`, `Labels`, `Healthcheck`, …
    """

    name: str
    identity: str
    root: Path
    size_bytes: int
    config: Mapping[str, Any]

    @property
    def environment(self) -> dict[str, str]:
        """The variables the image sets."""
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    def packages(self) -> dict[str, int]:
        """Bytes of each Python package that the image carries beside Python itself, largest first."""
        sizes = {}
        for place in self.root.glob("opt/cocoon-node/lib/python3*/site-packages/*"):
            if not place.name.endswith((".dist-info", ".pth")):
                sizes[place.name] = tree_bytes(place)
        return dict(sorted(sizes.items(), key=lambda entry: -entry[1]))


def missing_tools() -> list[str]:
    """Return what is needed and not there, one sentence each."""
    missing = [f"no program {tool}; Debian: {INSTALL}" for tool in TOOLS if shutil.which(tool) is None]
    return missing if os.geteuid() == 0 else [*missing, "building images needs root"]


def ensure(name: str) -> Image:
    """Build the image `name` where its Dockerfile, lock or sources have changed, and return it.

    Raises DevenvError, one line long, when tools are missing or the build fails.
    """
    if missing := missing_tools():
        raise DevenvError("; ".join(missing))
    with exclusive(_folder() / ".lock", "building the images"):
        # Whatever is there now was left by a build that was interrupted.
        _buildah("rm", "--all")
        if len(_buildah("images", "--all", "--quiet").split()) > _MOST_LAYERS:
            _buildah("rmi", "--prune")
        base = _ensure_base()
        with step(f"building the {name}'s image"), _pip_settings() as settings:
            identity = _build(name, base, settings)
        root = _unpacked(name, identity)
    described = json.loads(_buildah("inspect", "--type", "image", identity))
    # No --one-file-system: the root is one file system of its own.
    return Image(name, identity, root, tree_bytes(root), described["Docker"]["config"])


def tree_bytes(path: Path) -> int:
    """Bytes of all files in a tree, each counted once however many names it has."""
    counted: dict[tuple[int, int], int] = {}
    for folder, _, files in os.walk(path):
        for file in files:
            status = os.lstat(os.path.join(folder, file))
            counted[status.st_dev, status.st_ino] = status.st_size
    return sum(counted.values()) if path.is_dir() else os.lstat(path).st_size


def _folder() -> Path:
    return cache_directory() / "images"


def _buildah(*arguments: str | Path) -> str:
    places: list[str | Path] = ["--root", _folder() / "storage", "--runroot", _folder() / "run"]
    command = ["buildah", *places, *arguments]
    answer = subprocess.run(
        command,
        env=os.environ | {"BUILDAH_ISOLATION": "chroot"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["buildah said nothing"]
        raise DevenvError(f"buildah {arguments[0]}: {' | '.join(lines[-3:])}")
    return answer.stdout.strip()


def _ensure_base() -> str:
    recipe = " ".join([_SUITE, *_PACKAGES, *_LEFT_OUT])
    base = f"localhost/cocoon-node-python:{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    if _buildah("images", "--quiet", "--filter", f"reference={base}"):
        return base
    announced = step("making the image the Dockerfiles start from (only the first time)")
    with announced, tempfile.TemporaryDirectory(dir=_folder()) as folder:
        tree = Path(folder) / "root"
        _debootstrap(tree)
        container = _buildah("from", "scratch")
        _buildah("copy", "--quiet", container, tree, "/")
        _buildah("commit", "--quiet", container, base)
        _buildah("rm", container)
    return base


def _debootstrap(tree: Path) -> None:
    command: list[str | Path] = ["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _SUITE, tree]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        lines = (answer.stdout + answer.stderr).strip().splitlines() or ["nothing"]
        raise DevenvError(f"debootstrap failed; it said: {lines[-1]}")
    for left_out in _LEFT_OUT:
        shutil.rmtree(tree / left_out, ignore_errors=True)
        (tree / left_out).mkdir()


@contextmanager
def _pip_settings() -> Iterator[Path]:
    """A file of the settings with which pip reaches its registry from here, for the build alone."""
    answer = subprocess.run(["pip", "config", "list"], capture_output=True, text=True, check=False)
    lines = ["[global]"]
    if (_CERTIFICATES / "ca-certificates.crt").exists():
        lines.append(f"cert = {_CERTIFICATES / 'ca-certificates.crt'}")
    for line in answer.stdout.splitlines():
        key, _, value = line.partition("=")
        if key in ("global.index-url", "global.extra-index-url", "global.trusted-host"):
            lines.append(f"{key.removeprefix('global.')} = {value.strip(chr(39))}")
    with tempfile.NamedTemporaryFile("w", dir=_folder(), suffix=".conf") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        yield Path(file.name)


def _build(name: str, base: str, pip_settings: Path) -> str:
    tag = f"localhost/cocoon-node-{name}:latest"
    # Without a registry nothing can be pulled; what pip needs is seen by the build and no part of the image.
    mounts: Sequence[str] = ("-v", f"{_CERTIFICATES}:{_CERTIFICATES}:ro", "-v", f"{pip_settings}:/etc/pip.conf:ro")
    options = ("--quiet", "--layers", "--pull-never", "--format", "docker", "--build-arg", f"PYTHON={base}")
    _buildah("bud", *options, *mounts, "-f", REPOSITORY / f"Dockerfile.{name}", "-t", tag, REPOSITORY)
    return _buildah("images", "--quiet", "--no-trunc", tag)


def _unpacked(name: str, identity: str) -> Path:
    """Return the image's root as a directory; what older builds of it have left is removed."""
    roots = _folder() / "roots"
    roots.mkdir(exist_ok=True)
    wanted = roots / f"{name}-{identity.removeprefix('sha256:')[:16]}"
    if not wanted.exists():
        container = _buildah("from", "--pull-never", identity)
        try:
            unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=roots))
            subprocess.run(["cp", "--archive", f"{_buildah('mount', container)}/.", unfinished], check=True)
            unfinished.chmod(0o755)
            unfinished.rename(wanted)
        finally:
            _buildah("rm", container)
    for old in roots.glob(f"*{name}-*"):
        if old != wanted:
            shutil.rmtree(old)
    return wanted
