"""Reads the tree's own source for the checks: which files belong to it, and what each module imports and calls."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from devenv.toolchain import REPOSITORY

# Generated code follows its generator's rules.
_GENERATED = ("*_pb2.py", "*_pb2_grpc.py")
_BINARY = {".binpb", ".png", ".ico"}


@dataclass(frozen=True, slots=True)
class Module:
    """One Python source file: its path from the root, its text, its syntax tree."""

    path: PurePosixPath
    text: str
    tree: ast.Module

    def imports(self) -> dict[str, int]:
        """Return the dotted names imported anywhere in the module, each with its first line."""
        found: dict[str, int] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found.setdefault(alias.name, node.lineno)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for alias in node.names:
                    found.setdefault(f"{node.module}.{alias.name}", node.lineno)
        return found


@cache
def files() -> tuple[Path, ...]:
    """Return every file of the tree that is tracked or would be: what .gitignore names is not part of it."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = (REPOSITORY / name for name in listing.stdout.split("\0") if name)
    return tuple(sorted(path for path in paths if path.is_file()))


@cache
def texts() -> dict[PurePosixPath, str]:
    """Return the text of every text file of the tree by its path from the root."""
    return {
        PurePosixPath(path.relative_to(REPOSITORY)): path.read_text() for path in files() if path.suffix not in _BINARY
    }


@cache
def modules(*rooms: str) -> tuple[Module, ...]:
    """Return the hand-written Python modules under the top-level folders `rooms`."""
    return tuple(
        Module(path, text, ast.parse(text, filename=str(path)))
        for path, text in texts().items()
        if path.suffix == ".py" and path.parts[0] in rooms and not any(path.match(pattern) for pattern in _GENERATED)
    )
