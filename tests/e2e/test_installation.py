"""From nothing to a fleet: the commands of the installation page, as printed, bring up three agents with certificates
and a controller under its own service account, and take them away again.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devenv import programs
from devenv.cocoon_programs import environment_with
from devenv.control_plane import ControlPlane
from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import KubeApi
from devenv.toolchain import REPOSITORY
from tests.support import cluster
from tests.support.audit import AuditLog

_PAGE = REPOSITORY / "docs/installation.md"
_NODES = ("host-1", "host-2", "host-3")
# What the commands use of a checkout.
_CHECKOUT = ("agent", "common", "controller", "proto", "requirements", "deploy", "pyproject.toml", "README.md")


@pytest.fixture
def checkout(tmp_path: Path, kube: KubeApi) -> Iterator[Path]:
    """A copy of the tree to run the commands in; whatever of them still runs afterwards is ended."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in _CHECKOUT:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    yield copy
    for pid_file in copy.glob("trial/**/pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    for name in _NODES:
        for path in (cluster.NODES, cluster.LEASES):
            kube.discard(f"{path}/{name}")


@pytest.mark.timeout(600)
def test_the_pages_commands_bring_a_fleet_up(
    checkout: Path, control_plane: ControlPlane, kube: KubeApi, audit: AuditLog
) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    tools = programs.ensure(["kubectl", "grpcurl"])
    path = os.pathsep.join([*(str(tool.parent) for tool in tools.values()), os.environ["PATH"]])
    environment = environment_with({"KUBECONFIG": str(control_plane.kubeconfig()), "PATH": path})
    mark = audit.mark()
    # One shell for all blocks, as the page says; before the last one, which ends everything, a look from outside.
    look = "test -e looked || { touch up; while ! test -e looked; do sleep 0.1; done; }\n"
    script = checkout / "commands.sh"
    script.write_text("set -eu\n" + "".join(blocks[:-1]) + look + blocks[-1])

    with (checkout / "out").open("wb") as output:
        running = subprocess.Popen(["sh", script], cwd=checkout, env=environment, stdout=output, stderr=output)
    try:
        _wait_up(running, checkout)
        for name in _NODES:
            node = kube.get(f"{cluster.NODES}/{name}")
            assert cluster.condition(node, "Ready")["status"] == "True"
            assert node["status"]["capacity"]["cpu"] == "4"
            assert node["status"]["allocatable"]["memory"] == str(8 * 2**30 * 80 // 100)
        plain = subprocess.run(
            [tools["grpcurl"], "-plaintext", "-max-time", "5", "127.0.1.1:7443", "list"],
            capture_output=True,
            check=False,
        )
        assert plain.returncode != 0
    finally:
        (checkout / "looked").touch()
        status = running.wait(60)

    said = (checkout / "out").read_text()
    assert status == 0, said
    writers = {write.user for name in _NODES for write in audit.writes(mark, resource="nodes", name=name)}
    assert CONTROLLER_USER in writers
    assert [name for name in _NODES if kube.find(f"{cluster.NODES}/{name}") is not None] == []


def _wait_up(running: subprocess.Popen[bytes], checkout: Path) -> None:
    """Wait until the fleet is there; the commands' own words when they end before."""
    while not (checkout / "up").exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(0.2)
            raise AssertionError((checkout / "out").read_text())
