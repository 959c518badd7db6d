"""The locks: in step with pyproject.toml, hashed throughout, without any address."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from devenv.locks import EXTRAS, REQUIREMENTS, TOOLS
from devenv.toolchain import REPOSITORY

_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)")


def _pins(lock: str) -> dict[str, str]:
    """Package → version in a lock."""
    pins: dict[str, str] = {}
    for line in (REQUIREMENTS / f"{lock}.txt").read_text().splitlines():
        if match := _PINNED.match(line):
            pins[canonicalize_name(match["name"])] = match["version"]
    return pins


def _wanted(lock: str) -> list[Requirement]:
    """What the lock must satisfy, from the project file or from the tool's own list."""
    if lock in TOOLS:
        return [Requirement(line) for line in (REQUIREMENTS / f"{lock}.in").read_text().split()]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = [text for extra in EXTRAS[lock] for text in project["optional-dependencies"][extra]]
    return [Requirement(text) for text in [*project["dependencies"], *extras]]


@pytest.mark.parametrize("lock", [*EXTRAS, *TOOLS])
def test_lock_satisfies_what_was_asked_for(lock: str) -> None:
    pins = _pins(lock)
    unmet = [
        str(wanted)
        for wanted in _wanted(lock)
        if not wanted.specifier.contains(pins.get(canonicalize_name(wanted.name), "0.dev0"), prereleases=True)
        or canonicalize_name(wanted.name) not in pins
    ]
    assert unmet == [], "run ./run lock and commit the result"


@pytest.mark.parametrize("lock", [*EXTRAS, *TOOLS])
def test_every_pin_is_hashed_and_no_address_is_named(lock: str) -> None:
    text = (REQUIREMENTS / f"{lock}.txt").read_text()
    assert "://" not in text
    entries = re.split(r"\n(?=\S)", "\n" + text)
    assert [entry.split()[0] for entry in entries if _PINNED.match(entry) and "--hash=sha256:" not in entry] == []


def test_the_agents_lock_is_free_of_what_only_the_controller_needs() -> None:
    assert {"kubernetes", "aiohttp", "httpx", "aiodns"} & set(_pins("agent")) == set()


@pytest.mark.parametrize("lock", ["agent", "controller"])
def test_development_and_production_install_the_same_versions(lock: str) -> None:
    development = _pins("dev")
    assert {n: v for n, v in _pins(lock).items() if development.get(n) != v} == {}


def test_every_dependency_has_one_line_for_each_lock() -> None:
    assert sorted(path.stem for path in REQUIREMENTS.glob("*.txt")) == sorted([*EXTRAS, *TOOLS])
