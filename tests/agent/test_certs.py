"""`certs`: what it makes is good for both programs, private, and never at the cost of what is there."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from common.certificates import read_certificates
from devenv.cocoon_programs import AgentProcess
from tests.support import pki

Run = Callable[..., subprocess.CompletedProcess[str]]
READ = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
CHANGE = "/cocoonstack.node.v1.SnapshotCache/SyncOwners"
CLIENTS = ("cocoon-node-controller", "cocoon-node-viewer")


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def code_of(agent: AgentProcess, directory: Path, method: str) -> grpc.StatusCode:
    files = pki.TlsDirectory(directory)
    credentials = grpc.ssl_channel_credentials(
        files.authorities.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    options = [("grpc.ssl_target_name_override", agent.node_name)]
    async with grpc.aio.secure_channel(agent.address, credentials, options=options) as channel:
        try:
            await channel.unary_unary(method)(b"", timeout=20)  # type: ignore[arg-type]  # bytes as they are
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_both_programs_take_what_it_makes(
    run_agent: Run, agent_process: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    place = tmp_path / "certs"
    done = await asyncio.to_thread(run_agent, "certs", "--dir", str(place), "host-1", "host-2")
    assert done.returncode == 0, done.stderr
    for word in ("COCOON_NODE_TLS_CERT_FILE", "COCOON_NODE_CONTROLLER_TLS_CA_FILE", str(place / "agents/host-2")):
        assert word in done.stdout
    tls = pki.TlsDirectory(place / "agents/host-1")
    agent = await asyncio.to_thread(agent_process, tls.agent_settings(), "host-1")
    assert "refuse" not in (agent.directory / "agent.log").read_text()
    assert await code_of(agent, place / "clients/cocoon-node-controller", CHANGE) is grpc.StatusCode.INVALID_ARGUMENT
    assert await code_of(agent, place / "clients/cocoon-node-viewer", READ) is grpc.StatusCode.OK
    assert await code_of(agent, place / "clients/cocoon-node-viewer", CHANGE) is grpc.StatusCode.PERMISSION_DENIED
    # An agent's key does not let anybody call.
    assert await code_of(agent, place / "agents/host-2", READ) is grpc.StatusCode.UNAVAILABLE


def test_nobody_else_can_read_them(run_agent: Run, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert run_agent("certs", "--dir", str(tmp_path / "certs"), "host-1").returncode == 0
    finally:
        os.umask(before)
    made = [tmp_path / "certs", *(tmp_path / "certs").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_file()} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    assert sorted(path.name for path in made if path.is_file()) == sorted(
        ["ca.crt", "ca.key", *(["ca.crt", "tls.crt", "tls.key"] * 3)]
    )


def test_further_nodes_come_under_the_same_authority(run_agent: Run, tmp_path: Path) -> None:
    assert run_agent("certs", "--dir", str(tmp_path), "host-1").returncode == 0
    before = everything(tmp_path)
    done = run_agent("certs", "--dir", str(tmp_path), "--days", "7", "host-2.zone-a.example")
    assert done.returncode == 0, done.stderr
    after = everything(tmp_path)
    assert before.items() <= after.items()
    assert after["agents/host-2.zone-a.example/ca.crt"] == before["ca/ca.crt"]
    (read,) = read_certificates(after["agents/host-2.zone-a.example/tls.crt"])
    assert read.names == {"host-2.zone-a.example"}
    assert read.ends_at - read.begins_at == 7 * 86400


@pytest.mark.parametrize("names", [["host-1"], ["host-2", "host-1"]])
def test_nothing_is_overwritten_and_then_nothing_is_made(run_agent: Run, tmp_path: Path, names: list[str]) -> None:
    assert run_agent("certs", "--dir", str(tmp_path), "host-1").returncode == 0
    before = everything(tmp_path)
    done = run_agent("certs", "--dir", str(tmp_path), *names)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {tmp_path}/agents/host-1 exists; nothing is overwritten")
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", ["Host", "a b", "../x", "-x", "a/b", "h,DNS:other", "h\nkeyUsage=x", "x" * 64])
def test_a_name_that_is_no_nodes_is_refused(run_agent: Run, tmp_path: Path, name: str) -> None:
    """F26: it becomes a path and a line of a file for openssl."""
    done = run_agent("certs", "--dir", str(tmp_path), "--", name)
    assert done.returncode == 2
    assert "must be a node name" in done.stderr
    assert everything(tmp_path) == {}


@pytest.mark.parametrize("name", CLIENTS)
def test_no_node_is_named_like_a_role(run_agent: Run, tmp_path: Path, name: str) -> None:
    """Signed by an authority that lets nodes call, such a certificate would be the controller's."""
    done = run_agent("certs", "--dir", str(tmp_path), "host-1", name)
    assert done.returncode == 2
    assert "the name of a role" in done.stderr
    assert everything(tmp_path) == {}


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", "the openssl command is not on PATH"),
        ("#!/bin/sh\necho 'cannot do that' >&2\nexit 3\n", "openssl req ended with status 3: cannot do that"),
    ],
)
def test_when_openssl_fails_nothing_is_left(run_agent: Run, tmp_path: Path, program: str, words: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    if program:
        (tools / "openssl").write_text(program)
        (tools / "openssl").chmod(0o755)
    done = run_agent("certs", "--dir", str(tmp_path / "certs"), "host-1", PATH=str(tools))
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert everything(tmp_path / "certs") == {}


def test_the_agent_that_serves_loads_no_library_for_certificates() -> None:
    code = "import sys, agent.app; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
