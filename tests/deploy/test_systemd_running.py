"""The unit under systemd itself, the first process of a system of its own: it starts, is shut in, and does its work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from devenv.ports import PortLease
from devenv.toolchain import REPOSITORY

_SCRIPT = Path(__file__).with_name("unit_under_systemd.sh")
_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--kill-child")
_NOT_GIVEN = 77
_SYSTEMD = Path("/lib/systemd/systemd")


def _why_not() -> str:
    if os.geteuid() != 0 or not _SYSTEMD.exists() or shutil.which("unshare") is None:
        return "needs root, unshare and systemd"
    tried = subprocess.run([*_NAMESPACES, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "no namespaces can be made here"


def _report(scratch: Path) -> str:
    """Run it all and return what was seen, one `what=value` a line, between them what programs said."""
    ports = [PortLease(), PortLease()]
    arguments = [
        *(str(scratch), str(REPOSITORY), sysconfig.get_path("purelib"), sys.base_prefix),
        *(str(lease.port) for lease in ports),
    ]
    try:
        ended = subprocess.run(
            [*_NAMESPACES, "sh", _SCRIPT, *arguments], capture_output=True, text=True, check=False, timeout=100
        )
        if ended.returncode == _NOT_GIVEN:
            pytest.skip(f"no system of its own can be made here: {ended.stderr.strip()}")
        report = scratch / "out" / "report"
        assert report.exists(), ended.stdout + ended.stderr
        return report.read_text()
    finally:
        for lease in ports:
            lease.release()


def test_the_unit_starts_is_shut_in_and_works(tmp_path: Path) -> None:
    if why_not := _why_not():
        pytest.skip(why_not)
    report = _report(tmp_path)
    seen = dict(line.split("=", 1) for line in report.splitlines() if "=" in line)

    assert seen["start"] == "0", report + (tmp_path / "out/agent.log").read_text()
    assert (seen["ActiveState"], seen["Type"], seen["NRestarts"]) == ("active", "notify", "0")
    assert {seen["CapEff"], seen["CapBnd"]} == {"0" * 16}
    assert (seen["NoNewPrivs"], seen["Seccomp"], seen["homes"]) == ("1", "2", "0")
    may_write = {key.removeprefix("write "): value == "0" for key, value in seen.items() if key.startswith("write ")}
    assert [path for path, may in may_write.items() if may] == ["/var/lib/cocoon/snapshots", "/var/lib/cocoon-node"]
    assert len(may_write) == 6
    work = {what: seen[what] for what in ("retain", "release", "purge", "is there", "doctor", "stop")}
    assert work == {"retain": "0", "release": "0", "purge": "0", "is there": "1", "doctor": "0", "stop": "0"}, report
    assert seen["stopped"] == "success"
    # Wrong settings are told to whoever starts it, and not tried again.
    assert seen["wrong settings"] != "0"
    assert seen["afterwards"] == "failed"
    assert "VK_RESERVE_PERCENT" in (tmp_path / "out/agent.log").read_text()
