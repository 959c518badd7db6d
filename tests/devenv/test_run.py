"""`./run` before `.venv` is made: help without anything, one line about what is missing, an old Go passed over."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from devenv import bootstrap, toolchain
from devenv.errors import DevenvError
from devenv.toolchain import REPOSITORY, parse_version, required_version

_RUN = str(REPOSITORY / "run")


def test_help_needs_nothing_installed(tmp_path: Path) -> None:
    answer = subprocess.run([_RUN], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    for command in ("demo", "control-plane", "test", "lint", "bench", "proto", "lock"):
        assert f"\n  {command} " in answer.stdout


def test_a_missing_python_is_one_line(tmp_path: Path) -> None:
    for tool in ("sh", "dirname", "uname"):
        (tmp_path / tool).symlink_to(next(p for p in (f"/bin/{tool}", f"/usr/bin/{tool}") if os.path.exists(p)))
    environment = {"PATH": str(tmp_path)}
    answer = subprocess.run([_RUN, "test"], capture_output=True, text=True, check=False, env=environment)
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "Python 3.11" in answer.stderr


def test_an_environment_that_cannot_be_made_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(DevenvError, match=r"install its venv package \(Debian: python3\.\d+-venv\) or virtualenv"):
        bootstrap._create()


def test_an_up_to_date_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = tmp_path / "stamp"
    stamp.write_text(bootstrap._wanted_stamp())
    monkeypatch.setattr(bootstrap, "STAMP", stamp)
    monkeypatch.setattr(bootstrap, "_run", lambda *_: pytest.fail("nothing had to be run"))
    bootstrap.ensure_environment()
    assert stamp.exists()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/arm64", (1, 27, 0)),
        ("go: not found", None),
    ],
)
def test_versions_of_go_are_read(text: str, version: tuple[int, int, int] | None) -> None:
    assert parse_version(text) == version


def test_every_pinned_module_says_which_go_it_needs() -> None:
    modules = [file.parent for file in (REPOSITORY / "devenv" / "go").glob("*/go.mod")]
    assert len(modules) == 4
    assert all(required_version(module) >= (1, 26, 0) for module in modules)


def test_an_old_go_on_the_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    pinned = tmp_path / "pinned" / "go" / "bin" / "go"
    pinned.parent.mkdir(parents=True)
    pinned.write_text("#!/bin/sh\necho go version go1.27.3 linux/amd64\n")
    pinned.chmod(0o755)
    monkeypatch.setattr(toolchain, "install_pinned", lambda _tool, _description: tmp_path / "pinned")

    assert toolchain.find_go((1, 26, 0)) == pinned
    with pytest.raises(DevenvError, match=r"Go 1\.99\.0 or newer is needed"):
        toolchain.find_go((1, 99, 0))
