"""Builds the programs of the local control plane from pinned Go modules, once per change of what is pinned.

They are built from source because package registries are the one thing every developer's machine reaches. Each program
lands in a cache outside the tree under a hash of everything that decides its content, by rename, so that several
processes may ask at once and an interrupted build leaves nothing behind that looks finished.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devenv.errors import DevenvError
from devenv.progress import step
from devenv.toolchain import REPOSITORY, cache_directory, exclusive, find_go, required_version

MODULES = REPOSITORY / "devenv" / "go"
KUBERNETES_VERSION = "v1.36.3"

_STRIP = "-s -w"
# Without these the API server calls itself v0.0.0-master, and clients that look at its version misjudge it.
_KUBERNETES_FLAGS = " ".join(
    [
        _STRIP,
        *(
            f"-X k8s.io/component-base/version.{name}={value}"
            for name, value in (
                ("gitVersion", KUBERNETES_VERSION),
                ("gitMajor", KUBERNETES_VERSION.lstrip("v").split(".")[0]),
                ("gitMinor", KUBERNETES_VERSION.split(".")[1]),
            )
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program: the pinned module under `devenv/go` it is built in, and its Go package."""

    name: str
    module: str
    package: str
    linker_flags: str = _STRIP


PROGRAMS = {
    program.name: program
    for program in (
        Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
        Program("kube-apiserver", "kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver", _KUBERNETES_FLAGS),
        Program("kube-scheduler", "kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler", _KUBERNETES_FLAGS),
        Program(
            "kube-controller-manager", "kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager", _KUBERNETES_FLAGS
        ),
        Program("kubectl", "kubectl", "k8s.io/kubernetes/cmd/kubectl", _KUBERNETES_FLAGS),
        Program("grpcurl", "etcd", "github.com/fullstorydev/grpcurl/cmd/grpcurl"),
        Program("crane", "registry", "github.com/google/go-containerregistry/cmd/crane"),
    )
}

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")


def cache_path(name: str) -> Path:
    """Return where the program `name` is kept once built: a folder named by the hash of what decides its content."""
    program = PROGRAMS[name]
    digest = hashlib.sha256()
    for file in ("go.mod", "go.sum", "tools.go"):
        digest.update((MODULES / program.module / file).read_bytes())
    digest.update(f"{program.linker_flags} trimpath cgo=0 {platform.system()} {platform.machine()}".encode())
    return cache_directory() / "programs" / f"{program.module}-{digest.hexdigest()[:16]}" / name


def ensure(names: Iterable[str]) -> dict[str, Path]:
    """Return the path of each program in `names`, building those that are missing, with progress on standard error.

    Raises DevenvError, one line long, when the Go toolchain is missing or a build fails.
    """
    paths = {name: cache_path(name) for name in names}
    if all(path.exists() for path in paths.values()):
        return paths
    with exclusive(cache_directory() / "programs" / ".lock", "building the control plane"):
        missing = [name for name, path in paths.items() if not path.exists()]
        for number, name in enumerate(missing, start=1):
            with step(f"[{number}/{len(missing)}] building {name} (only the first time)"):
                _build(PROGRAMS[name], paths[name])
    return paths


def _build(program: Program, destination: Path) -> None:
    module = MODULES / program.module
    go = find_go(required_version(module))
    destination.parent.mkdir(parents=True, exist_ok=True)
    unfinished = destination.parent / f".{program.name}.{os.getpid()}"
    command: list[str | Path] = [
        go,
        "build",
        "-mod=readonly",
        "-buildvcs=false",
        "-trimpath",
        "-ldflags",
        program.linker_flags,
        "-o",
    ]
    try:
        answer = subprocess.run(
            [*command, unfinished, program.package],
            cwd=module,
            env=os.environ | _go_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode != 0:
            raise DevenvError(f"building {program.name} failed: {_last_line(answer.stderr)}")
        unfinished.rename(destination)
    finally:
        unfinished.unlink(missing_ok=True)


def _go_environment() -> dict[str, str]:
    go_cache = cache_directory() / "go"
    return {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw",
        "GOWORK": "off",
        "GOMODCACHE": str(go_cache / "mod"),
        "GOCACHE": str(go_cache / "build"),
    }


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "the Go compiler said nothing"
