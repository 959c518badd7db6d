"""The unit and the example of its settings: systemd's own judgement, and agreement with the agent."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.config import SETTINGS
from devenv.cocoon_programs import environment_with
from devenv.toolchain import REPOSITORY

_FOLDER = REPOSITORY / "deploy/systemd"
_UNIT = _FOLDER / "cocoon-node-agent.service"
_EXAMPLE = _FOLDER / "agent.env.example"
_AGENT = Path(sys.executable).with_name("cocoon-node-agent")
# Tenths: 0 is a service that may do nothing at all, 96 one that may do everything.
_HIGHEST_EXPOSURE = 20

_needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")


class _Unit(configparser.RawConfigParser):
    """A unit file: names keep their case."""

    def optionxform(self, optionstr: str) -> str:
        """Return the name as it is."""
        return optionstr


@pytest.fixture
def service() -> dict[str, str]:
    """The unit's section [Service]."""
    unit = _Unit(interpolation=None, strict=True)
    unit.read_string(_UNIT.read_text())
    return dict(unit["Service"])


@_needs_systemd
def test_systemd_finds_nothing_wrong_and_little_exposed(tmp_path: Path) -> None:
    """The installed program is not here, so the unit is looked at with the one that is."""
    unit = tmp_path / _UNIT.name
    unit.write_text(_UNIT.read_text().replace("/opt/cocoon-node/bin/cocoon-node-agent", str(_AGENT)))

    verified = _run("systemd-analyze", "verify", "--man=no", str(unit))
    exposed = _run("systemd-analyze", "security", "--offline=yes", f"--threshold={_HIGHEST_EXPOSURE}", str(unit))

    assert (verified.returncode, verified.stderr) == (0, "")
    assert exposed.returncode == 0, exposed.stdout[-500:]


def test_what_may_be_written_is_the_state_and_the_store(service: dict[str, str]) -> None:
    defaults = {setting.name: setting.default for setting in SETTINGS}

    assert service["ProtectSystem"] == "strict"
    assert f"/var/lib/{service['StateDirectory']}" == defaults["state_dir"]
    assert service["ReadWritePaths"] == f"{defaults['root_dir']}/snapshots"
    assert (service["NoNewPrivileges"], service["CapabilityBoundingSet"]) == ("yes", "")


def test_the_example_is_valid_as_it_is_and_with_every_line_in_force(tmp_path: Path) -> None:
    everything = tmp_path / "everything.env"
    everything.write_text(re.sub(r"^#(?=[A-Z_]+=)", "", _EXAMPLE.read_text(), flags=re.MULTILINE))

    for file in (_EXAMPLE, everything):
        checked = _run(str(_AGENT), "config", "check", "--config", str(file))
        assert (checked.returncode, checked.stderr) == (0, ""), file


def test_the_example_recommends_an_age_and_a_size() -> None:
    lines = _EXAMPLE.read_text().splitlines()
    assert [line for line in lines if line.startswith("COCOON_NODE_POLICY_MAX_AGE=")]
    assert [line for line in lines if line.startswith("COCOON_NODE_POLICY_MAX_BYTES=")]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment_with({}), capture_output=True, text=True, check=False, timeout=60)
