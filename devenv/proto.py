"""Generates the Python modules and the descriptor set from the .proto files.

The generated files are committed, so that installing needs no compiler; a test regenerates them elsewhere and compares.
The descriptor set is what the API was at the last generation: `buf breaking` compares the .proto files with it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from devenv.errors import DevenvError
from devenv.progress import say
from devenv.toolchain import REPOSITORY

PROTO = REPOSITORY / "proto"
DESCRIPTOR_SET = PROTO / "descriptor.binpb"
_TOOLS = Path(sys.executable).parent


def sources() -> list[Path]:
    """Return the .proto files, sorted."""
    return sorted(PROTO.glob("cocoonstack/**/*.proto"))


def generated_files(root: Path) -> dict[str, bytes]:
    """Return every generated file under `root` by its relative path, with its content."""
    files = [*root.glob("cocoonstack/**/*_pb2*.py*"), root / DESCRIPTOR_SET.name]
    return {str(file.relative_to(root)): file.read_bytes() for file in files if "__pycache__" not in file.parts}


def generate(destination: Path) -> None:
    """Write the generated modules and the descriptor set of the present .proto files into `destination`."""
    plugins = [f"--plugin=protoc-gen-{name}={_TOOLS / f'protoc-gen-{name}'}" for name in ("mypy", "mypy_grpc")]
    outputs = [f"--{name}_out={destination}" for name in ("python", "grpc_python", "mypy", "mypy_grpc")]
    descriptors = ["--include_imports", f"--descriptor_set_out={destination / DESCRIPTOR_SET.name}"]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}"]
    _run([*compiler, *plugins, *outputs, *descriptors, *sources()], "the protobuf compiler")


def breaking_changes() -> str:
    """Return what `buf breaking` says about the .proto files against the descriptor set; empty when nothing breaks."""
    answer = _buf("breaking", "--against", str(DESCRIPTOR_SET))
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def lint_findings() -> str:
    """Return what `buf lint` says about the .proto files; empty when it finds nothing."""
    answer = _buf("lint")
    return "" if answer.returncode == 0 else answer.stdout + answer.stderr


def regenerate(*, accept_breaking: bool) -> None:
    """Replace the generated files; refuses changes that break existing clients unless told to accept them."""
    if DESCRIPTOR_SET.exists() and not accept_breaking:
        findings = breaking_changes()
        if findings:
            say(findings.strip())
            raise DevenvError("this breaks existing clients; --accept-breaking generates it all the same")
    with tempfile.TemporaryDirectory() as directory:
        generate(Path(directory))
        for relative, content in generated_files(Path(directory)).items():
            (PROTO / relative).write_bytes(content)
    say(f"generated from {len(sources())} files")


def _buf(*arguments: str) -> subprocess.CompletedProcess[str]:
    buf = shutil.which("buf", path=str(_TOOLS)) or "buf"
    return subprocess.run([buf, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)


def _run(command: Sequence[str | Path], what: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise DevenvError(f"{what} failed: {answer.stderr.strip()}")
