"""The rules of the design that an import linter cannot say: pure decisions, and libraries kept in their rooms."""

from __future__ import annotations

import ast
import sys
from pathlib import PurePosixPath

import pytest

from tests.project.source_tree import Module, modules

# A module with one of these names holds a decision: it gets values, returns values, and can be read as a table.
PURE_NAMES = {"plan.py", "decide.py", "capacity.py", "retention.py", "collection.py", "quantity.py", "model.py"}

# Standard library all the same, but each of these reaches outside the values a decision was given.
_IMPURE_MODULES = {
    "asyncio", "concurrent", "ctypes", "fcntl", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random",
    "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time",
    "urllib",
}  # fmt: skip
_IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "uuid4", "getenv"}

# Where a library may be imported, as patterns of paths; everywhere else it would tie a decision to a transport.
CONFINED = {
    "kubernetes": ("controller/kube/*.py", "controller/*/writer*.py"),
    "sqlite3": ("agent/snapshots/ledger*.py",),
    "cocoonstack": (
        "agent/*/service*.py",
        "agent/*/message*.py",
        "common/owner_message.py",
        "agent/rpc/*.py",
        "controller/agents/*.py",
        # The command line is a client of the service, and app.py is where the services are put together.
        "agent/app.py",
        "agent/ask.py",
        "agent/cli*.py",
        "agent/printing.py",
        "agent/snapshot_*.py",
    ),
}


def _product() -> tuple[Module, ...]:
    return modules("agent", "controller", "common")


def _closure() -> list[Module]:
    """The decisions and every module of ours that they import, directly or not."""
    by_path = {module.path: module for module in _product()}
    found: dict[PurePosixPath, Module] = {}
    waiting = [module for module in _product() if module.path.name in PURE_NAMES]
    while waiting:
        module = waiting.pop()
        found[module.path] = module
        for name in module.imports():
            # The name imported is a module itself, or something in the module before its last dot.
            paths = {PurePosixPath(f"{dotted.replace('.', '/')}.py") for dotted in (name, name.rpartition(".")[0])}
            waiting += [by_path[path] for path in paths & by_path.keys() - found.keys()]
    return list(found.values())


def _impurities(module: Module) -> list[str]:
    found = []
    for name, line in module.imports().items():
        top = name.split(".")[0]
        if top in {"agent", "controller", "common"}:
            continue
        if top not in sys.stdlib_module_names:
            found.append(f"{module.path}:{line} imports {name}, which is not of the standard library")
        elif top in _IMPURE_MODULES:
            found.append(f"{module.path}:{line} imports {name}, which does input or output or reads a clock")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _IMPURE_CALLS:
                found.append(f"{module.path}:{node.lineno} calls {called}()")
    return found


def test_decisions_are_pure() -> None:
    decisions = _closure()
    assert decisions, "no pure module found: the names this test looks for have changed"
    assert [problem for module in decisions for problem in _impurities(module)] == []


@pytest.mark.parametrize("library", CONFINED)
def test_library_stays_in_its_room(library: str) -> None:
    strays = [
        f"{module.path}:{line} imports {name}"
        for module in _product()
        for name, line in module.imports().items()
        if name.split(".")[0] == library and not any(module.path.match(pattern) for pattern in CONFINED[library])
    ]
    assert strays == []


def test_modules_are_short_enough_to_read_and_say_why_they_exist() -> None:
    problems = []
    for module in modules("agent", "controller", "common", "devenv", "benchmarks", "tests"):
        lines = module.text.count("\n")
        limit = 600 if module.path.parts[0] == "tests" else 300
        if lines > limit:
            problems.append(f"{module.path}: {lines} lines, at most {limit}")
        if lines and ast.get_docstring(module.tree) is None:
            problems.append(f"{module.path}: no docstring")
    assert problems == []


def test_no_module_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "manager", "handler", "misc", "common_utils"}
    assert [str(m.path) for m in modules("agent", "controller", "common", "devenv") if m.path.stem in vague] == []
