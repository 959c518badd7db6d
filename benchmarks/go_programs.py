"""The Go peers: built once from the sources beside this file, kept in the cache by their hash."""

import hashlib
import os
import subprocess
from pathlib import Path

from benchmarks.processes import BenchmarkError
from devenv.toolchain import cache_directory, exclusive, find_go, required_version

_SOURCES = Path(__file__).resolve().parent / "go"


def build(name: str) -> Path:
    """Return the program built from `benchmarks/go/<name>`.

    Raises BenchmarkError when the build fails and DevenvError when there is no Go to build with.
    """
    source = _SOURCES / name
    digest = hashlib.sha256()
    for path in sorted(source.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    program = cache_directory() / "programs" / f"benchmark-{name}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    with exclusive(cache_directory() / "programs" / ".lock", f"building benchmarks/go/{name}"):
        if not program.exists():
            _build(source, program)
    return program


def _build(source: Path, program: Path) -> None:
    unfinished = program.with_name(f".{program.name}.{os.getpid()}")
    go = find_go(required_version(source))
    command = [str(go), "build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w"]
    built = subprocess.run(
        [*command, "-o", str(unfinished), "."],
        cwd=source,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        raise BenchmarkError(f"go build of {source} failed: {built.stderr.strip()[-800:]}")
    unfinished.rename(program)


def _environment() -> dict[str, str]:
    go_cache = cache_directory() / "go"
    return os.environ | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw",
        "GOWORK": "off",
        "GOMODCACHE": str(go_cache / "mod"),
        "GOCACHE": str(go_cache / "build"),
    }
