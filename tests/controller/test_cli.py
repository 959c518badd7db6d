"""The commands as people run them, against a real control plane and real gRPC servers."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from common.version import VERSION
from devenv.control_plane import ControlPlane
from devenv.kube_api import ApiError, KubeApi
from tests.support.fake_agent import FakeAgent
from tests.support.waiting import wait_for_async

PROGRAM = str(Path(sys.executable).with_name("cocoon-node-controller"))
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
Name = Callable[[str], str]


@dataclass(frozen=True)
class Ended:
    status: int | None
    out: str
    err: str


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("COCOON_NODE_", "KUBE"))}


async def command(*words: str, typed: str = "", environment: dict[str, str] | None = None) -> Ended:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment() | (environment or {}),
    )
    out, err = await process.communicate(typed.encode())
    assert b"Traceback" not in out + err
    return Ended(process.returncode, out.decode(), err.decode())


@contextlib.asynccontextmanager
async def running(directory: Path, *words: str) -> AsyncIterator[str]:
    """Run the controller until the block ends; gives its HTTP address."""
    ready, log = directory / "ready", directory / "log"
    arguments = (*words, "--ready-file", str(ready), "--http-listen", "127.0.0.1:0")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "run", *arguments, stderr=output, stdout=output, env=_environment()
        )
        try:
            await wait_for_async(
                lambda: ready.exists() or process.returncode is not None, 60, what="the controller being ready"
            )
            assert process.returncode is None, log.read_text()
            yield str(json.loads(ready.read_text())["http"])
            assert process.returncode is None, log.read_text()
        finally:
            if process.returncode is None:
                process.terminate()
            status = await asyncio.wait_for(process.wait(), 20)
    assert status == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def _is_ready(node: dict[str, object] | None) -> bool:
    conditions = (node or {}).get("status", {}).get("conditions", [])  # type: ignore[attr-defined]
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


async def _remove(kube: KubeApi, name: str) -> None:
    """Remove what the test made; a Lease may go with its Node at any moment."""
    for path in (f"/api/v1/nodes/{name}", f"{LEASES}/{name}"):
        with contextlib.suppress(ApiError):
            await asyncio.to_thread(kube.delete, path)


async def test_version_and_help() -> None:
    assert (await command("version")).out == f"{VERSION}\n"
    helped = await command("--help")
    assert helped.status == 0
    for name in ("run", "plan", "nodes", "accept", "forget", "prune", "config"):
        assert name in helped.out


@pytest.mark.parametrize("words", [("run",), ("plan",), ("nodes",), ("config", "check"), ("prune", "--all")])
async def test_no_cluster_is_ever_taken_silently(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("apiVersion: v1\nkind: Config\n")
    ambient = {"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / ".kube" / "config")}
    ended = await command(*words, environment=ambient)
    assert ended.status == 2
    assert "--kubeconfig FILE or --in-cluster" in ended.err


async def test_unusable_kubeconfig_is_a_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "kubeconfig"
    bad.write_text("{")
    ended = await command("nodes", "--kubeconfig", str(bad))
    assert ended.status == 2
    assert str(bad) in ended.err


async def test_config_show_names_sources() -> None:
    ended = await command(
        "config",
        "show",
        "-o",
        "json",
        "--agents",
        "a=127.0.0.1:1",
        environment={"COCOON_NODE_CONTROLLER_KUBECONFIG": "/nowhere"},
    )
    assert ended.status == 0
    shown = {entry["variable"]: entry for entry in json.loads(ended.out)}
    assert shown["COCOON_NODE_CONTROLLER_AGENTS"]["source"] == "command line, --agents"
    assert shown["COCOON_NODE_CONTROLLER_KUBECONFIG"]["source"] == "environment"
    assert shown["COCOON_NODE_LIFECYCLE"] == {"variable": "COCOON_NODE_LIFECYCLE", "value": "auto", "source": "default"}


async def test_plan_touches_nothing_and_shows_the_exact_requests(
    control_plane: ControlPlane, kube: KubeApi, unique_name: Name
) -> None:
    name = unique_name("plan")
    cluster = ("--kubeconfig", str(control_plane.kubeconfig("controller")))
    async with FakeAgent(name) as agent:
        ended = await command("plan", *cluster, "--agents", f"{name}={agent.address},{name}-dead=127.0.0.1:1")
    assert ended.status == 1, "an agent that does not answer is an error of the command"
    assert f"{name}-dead at 127.0.0.1:1" in ended.err
    documents = list(yaml.safe_load_all(ended.out))
    assert [document["node"] for document in documents] == [name]
    requests = documents[0]["requests"]
    assert [request["verb"] for request in requests] == ["create", "apply", "apply"]
    assert requests[2]["body"]["status"]["allocatable"]["memory"] == "108075011276"
    assert await asyncio.to_thread(kube.find, f"/api/v1/nodes/{name}") is None
    assert await asyncio.to_thread(kube.find, f"{LEASES}/{name}") is None


async def test_life_of_a_node(control_plane: ControlPlane, kube: KubeApi, unique_name: Name, tmp_path: Path) -> None:
    """Register, show, accept another machine (F34), refuse to forget a living host, prune, forget a dead one."""
    name = unique_name("life")
    path = f"/api/v1/nodes/{name}"
    cluster = ("--kubeconfig", str(control_plane.kubeconfig("controller")))
    agent = await FakeAgent(name).start()
    agents = ("--agents", f"{name}={agent.address}")
    try:
        async with running(tmp_path, *cluster, *agents) as http:
            await wait_for_async(lambda: _is_ready(kube.find(path)), what="the Node being Ready")
            ended = await command("plan", *cluster, *agents)
            assert (ended.status, yaml.safe_load(ended.out)["requests"]) == (0, [])

            shown = json.loads((await command("nodes", *cluster, "-o", "json")).out)
            mine = next(node for node in shown if node["name"] == name)
            assert mine["allocatable"]["cpu"] == "25"
            assert mine["lease"]["holder"] == "cocoon-node-controller"
            table = (await command("nodes", *cluster)).out
            assert f"{name} " in table
            assert "answers" in table

            refused = await command("forget", name, "--yes", *cluster, *agents)
            assert refused.status == 1
            assert "answers" in refused.err

            async with httpx.AsyncClient() as browser:
                assert (await browser.get(f"http://{http}/readyz")).status_code == 200
                metrics = (await browser.get(f"http://{http}/metrics")).text
                assert 'cocoon_node_agent_reports_total{outcome="taken"}' in metrics

            agent.report.host.machine_id = "another machine"
            await agent.restart_instance("instance-2")
            await wait_for_async(lambda: _events(kube, name, "MachineChanged"), what="the event of another machine")
            accepted = await command("accept", name, *cluster, *agents)
            assert (accepted.status, accepted.err) == (0, "")
            live = await asyncio.to_thread(kube.get, path)
            assert live["metadata"]["annotations"]["cocoonstack.io/accepted-machine-id"] == "another machine"
        await agent.stop()

        unsure = await command("forget", name, *cluster, typed="n\n")
        assert unsure.status == 1
        pruned = await command("prune", name, *cluster)
        assert (pruned.status, pruned.out) == (0, f"Node {name}: pruned\n")
        live = await asyncio.to_thread(kube.get, path)
        assert "cocoonstack.io/pool" not in live["metadata"]["labels"]
        assert not [m for m in live["metadata"]["managedFields"] if m["manager"].startswith("cocoon-node")]
        assert live["status"]["capacity"]["memory"] == "131927504Ki"
        theirs = await command("forget", name, "--yes", *cluster)
        assert theirs.status == 1, "a Node that is no longer ours is not ours to remove"
    finally:
        await agent.stop()
        await _remove(kube, name)


async def test_forget_removes_node_and_lease(
    control_plane: ControlPlane, kube: KubeApi, unique_name: Name, tmp_path: Path
) -> None:
    name = unique_name("gone")
    path = f"/api/v1/nodes/{name}"
    cluster = ("--kubeconfig", str(control_plane.kubeconfig("controller")))
    try:
        async with FakeAgent(name) as agent, running(tmp_path, *cluster, "--agents", f"{name}={agent.address}"):
            await wait_for_async(lambda: _is_ready(kube.find(path)), what="the Node being Ready")
            await wait_for_async(lambda: kube.find(f"{LEASES}/{name}"), what="the Lease")
        lease = {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}}
        await asyncio.to_thread(kube.merge, f"{LEASES}/{name}", lease)
        forgotten = await command("forget", name, *cluster, typed="y\n")
        assert forgotten.status == 0, forgotten.err
        assert await asyncio.to_thread(kube.find, path) is None
        await wait_for_async(lambda: kube.find(f"{LEASES}/{name}") is None, what="the end of the Lease")
        again = await command("forget", name, "--yes", *cluster)
        assert (again.status, again.err) == (1, f"error: there is no Node and no Lease {name}\n")
        pruned = await command("prune", name, *cluster)
        assert (pruned.status, pruned.out) == (0, f"there is no Node {name}\n")
    finally:
        await _remove(kube, name)


async def test_agents_of_a_file_are_picked_up_while_running(
    control_plane: ControlPlane, kube: KubeApi, unique_name: Name, tmp_path: Path
) -> None:
    one, two = unique_name("file"), unique_name("file")
    listed = tmp_path / "agents"
    cluster = ("--kubeconfig", str(control_plane.kubeconfig("controller")))
    try:
        async with FakeAgent(one) as first, FakeAgent(two) as second:
            listed.write_text(f"{one}={first.address}\n")
            async with running(tmp_path, *cluster, "--agents-file", str(listed)):
                await wait_for_async(lambda: _is_ready(kube.find(f"/api/v1/nodes/{one}")), what="the first Node")
                listed.write_text(f"{one}={first.address}\n{two}={second.address}\n")
                await wait_for_async(lambda: _is_ready(kube.find(f"/api/v1/nodes/{two}")), what="the second Node")
    finally:
        await _remove(kube, one)
        await _remove(kube, two)


async def test_impostor_is_refused_with_an_event(
    control_plane: ControlPlane, kube: KubeApi, unique_name: Name, tmp_path: Path
) -> None:
    """F34: an agent that reports another node's name changes nothing, and the Node it was to speak for says why."""
    mine, other = unique_name("mine"), unique_name("other")
    cluster = ("--kubeconfig", str(control_plane.kubeconfig("controller")))
    async with (
        FakeAgent(other) as impostor,
        running(tmp_path, *cluster, "--agents", f"{mine}={impostor.address}"),
    ):
        await wait_for_async(lambda: _events(kube, mine, "IdentityMismatch"), what="the event")
        assert await asyncio.to_thread(kube.find, f"/api/v1/nodes/{mine}") is None
        assert await asyncio.to_thread(kube.find, f"/api/v1/nodes/{other}") is None


def _events(kube: KubeApi, name: str, reason: str) -> list[object]:
    found = kube.items("/apis/events.k8s.io/v1/namespaces/default/events")
    return [e for e in found if e["regarding"].get("name") == name and e["reason"] == reason]


async def test_address_in_use_is_a_sentence(control_plane: ControlPlane) -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        ended = await command(
            "run",
            *("--kubeconfig", str(control_plane.kubeconfig("controller"))),
            *("--agents", "a=127.0.0.1:1", "--http-listen", f"127.0.0.1:{port}"),
        )
    finally:
        server.close()
        await server.wait_closed()
    assert ended.status == 1
    assert "COCOON_NODE_CONTROLLER_HTTP_LISTEN" in ended.err


@pytest.mark.parametrize("words", [("accept",), ("forget", "--yes"), ("prune",)], ids=lambda words: words[0])
@pytest.mark.parametrize("name", ["", " ", "a/b", "../pods", "x?dryRun=All", "a b", "A", "a" * 64, "a\nb"])
async def test_what_is_no_node_name_never_becomes_a_request(words: tuple[str, ...], name: str) -> None:
    """An empty name would make the path of the whole collection."""
    done = await command(*words, name, "--kubeconfig", "/nonexistent", "--agents", "a=127.0.0.1:1")
    assert done.status == 2
    assert done.err.startswith("error: NODE ")
    assert done.err.endswith("must be a node name, an RFC 1123 subdomain of at most 63 characters\n")
