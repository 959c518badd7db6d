"""The real program: starts, answers, tells that it is ready, ends."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agent.ask import AskError, ask_report
from cocoonstack.node.v1 import node_resources_pb2 as pb
from devenv.cocoon_programs import AgentProcess, environment_with
from devenv.errors import DevenvError
from tests.support.waiting import wait_for

Agents = Callable[..., AgentProcess]
Host = Callable[[str], dict[str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]
_COMMAND = Path(sys.executable).with_name("cocoon-node-agent")


def page(agent: AgentProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{agent.http_address}{path}", timeout=10) as answer:  # loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def log_records(agent: AgentProcess) -> list[dict[str, object]]:
    return [json.loads(line) for line in (agent.directory / "agent.log").read_text().splitlines()]


def test_serves_and_ends(agent_process: Agents, fixture_host: Host) -> None:
    host = {key: value for key, value in fixture_host("thirty-two-cpus").items() if key != "VK_NODE_NAME"}
    agent = agent_process(host | {"COCOON_NODE_LOG_FORMAT": "json"})
    assert json.loads(agent.ready_file.read_text()) == {"addresses": [agent.address], "http": agent.http_address}
    report = ask_report(agent.address)
    assert report.node_name == agent.node_name
    assert dict(report.allocatable)["memory"] == "108075011276"
    assert page(agent, "/healthz") == (200, "ok\n")
    assert page(agent, "/readyz") == (200, "ok\n")
    assert page(agent, "/nothing")[0] == 404
    assert agent.stop() == 0
    messages = [record["message"] for record in log_records(agent)]
    assert messages == ["listening", "serving", "stopping"]


def test_an_agent_that_was_killed_leaves_nothing_that_says_it_serves(agent_process: Agents, fixture_host: Host) -> None:
    """The next one that cannot serve must not be taken for ready."""
    agent = agent_process(fixture_host("thirty-two-cpus"))
    agent.process.kill()
    assert agent.ready_file.exists()
    environment = agent.environment() | {"COCOON_NODE_PROCFS": "/nonexistent", "COCOON_NODE_START_RETRY_SECONDS": "0"}
    done = subprocess.run([_COMMAND, "serve"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "meminfo: No such file or directory" in done.stderr
    assert not agent.ready_file.exists()


def test_the_metrics_page_counts_calls_and_shows_the_host(agent_process: Agents, fixture_host: Host) -> None:
    agent = agent_process(fixture_host("thirty-two-cpus"))
    for _ in range(3):
        ask_report(agent.address)
    status, text = page(agent, "/metrics")
    assert status == 200
    method = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
    for line in (
        f'cocoon_node_calls_total{{code="OK",method="{method}"}} 3.0',
        f'cocoon_node_call_seconds_count{{method="{method}"}} 3.0',
        'cocoon_node_capacity{resource="cpu"} 32000.0',
        'cocoon_node_allocatable{resource="memory"} 1.08075011276e+11',
        'cocoon_node_condition{type="CocoonProbeFailed"} 0.0',
        "cocoon_node_report_revision 1.0",
        "cocoon_node_failed_readings_total 0.0",
    ):
        assert line in text.splitlines()


def test_a_stop_ends_open_watches_at_once(agent_process: Agents) -> None:
    agent = agent_process()
    with grpc.insecure_channel(agent.address) as channel:
        watch = channel.unary_stream(
            "/cocoonstack.node.v1.NodeResources/WatchNodeResources",
            request_serializer=pb.WatchNodeResourcesRequest.SerializeToString,
            response_deserializer=pb.WatchNodeResourcesResponse.FromString,
        )(pb.WatchNodeResourcesRequest())
        assert next(watch).report.node_name == agent.node_name
        assert agent.stop() == 0
        with pytest.raises((StopIteration, grpc.RpcError)):
            next(watch)


def test_a_restart_with_the_same_settings_says_the_same(agent_process: Agents, fixture_host: Host) -> None:
    """F10: another instance, and nothing else that would be written to the Node."""
    agent = agent_process(fixture_host("arm64") | {"VK_NODE_STORAGE": "1Ti"})
    before = ask_report(agent.address)
    agent.restart()
    after = ask_report(agent.address)
    assert before.instance_id != after.instance_id
    for field in ("capacity", "allocatable", "labels", "managed_label_keys", "addresses", "host", "provider_id"):
        assert getattr(before, field) == getattr(after, field)


def test_a_class_cleared_in_the_file_is_gone_after_a_restart(agent_process: Agents, tmp_path: Path) -> None:
    """F9: the label is absent and its key still managed."""
    file = tmp_path / "agent.env"
    file.write_text("VK_SNAPSHOT_CPU_CLASS=gen4\n")
    agent = agent_process({"COCOON_NODE_CONFIG": str(file)})
    key = "cocoonstack.io/snapshot-cpu-class"
    assert ask_report(agent.address).labels[key] == "gen4"
    file.write_text("VK_SNAPSHOT_CPU_CLASS=\n")
    agent.restart()
    report = ask_report(agent.address)
    assert key not in report.labels
    assert key in report.managed_label_keys


def test_until_the_host_can_be_read_nothing_is_published(tmp_path: Path, fixture_host: Host) -> None:
    """F6: it listens, answers PROBE_FAILED and not ready, and serves as soon as the reading succeeds."""
    host = fixture_host("thirty-two-cpus")
    proc = tmp_path / "proc"
    proc.mkdir()
    agent = AgentProcess(tmp_path / "agent", "host-1", host | {"COCOON_NODE_PROCFS": str(proc)})
    agent.process.environment = agent.environment()
    agent.process.start()
    try:
        wait_for(lambda: page(agent, "/readyz")[0] == 503, ignoring=(OSError,))
        with pytest.raises(AskError, match="UNAVAILABLE: the host has not been read"):
            ask_report(agent.address)
        assert not agent.ready_file.exists()
        (proc / "meminfo").write_text((Path(host["COCOON_NODE_PROCFS"]) / "meminfo").read_text())
        wait_for(agent.ready_file.exists)
        assert dict(ask_report(agent.address).capacity)["memory"] == "131927504Ki"
    finally:
        agent.release()


def test_a_stop_while_the_host_cannot_be_read_is_an_orderly_one(tmp_path: Path, fixture_host: Host) -> None:
    """F6: waiting for the host does not hold up the end."""
    settings = fixture_host("arm64") | {"COCOON_NODE_PROCFS": str(tmp_path)}
    agent = AgentProcess(tmp_path / "agent", "host-1", settings)
    agent.process.environment = agent.environment()
    agent.process.start()
    try:
        wait_for(lambda: page(agent, "/readyz")[0] == 503, ignoring=(OSError,))
        assert agent.stop() == 0
    finally:
        agent.release()


def test_a_host_that_cannot_be_read_ends_the_start(agent_process: Agents, fixture_host: Host, tmp_path: Path) -> None:
    """F6: after the time given, with the file and the problem, without a traceback."""
    settings = fixture_host("arm64") | {"COCOON_NODE_PROCFS": str(tmp_path), "COCOON_NODE_START_RETRY_SECONDS": "0"}
    with pytest.raises(DevenvError, match=r"memory cannot be read from .*meminfo: No such file") as caught:
        agent_process(settings)
    assert "Traceback" not in str(caught.value)


def test_an_address_in_use_is_a_sentence(agent_process: Agents, tmp_path: Path) -> None:
    agent = agent_process()
    for variable, address, other in (
        ("COCOON_NODE_LISTEN", agent.address, "COCOON_NODE_HTTP_LISTEN"),
        ("COCOON_NODE_HTTP_LISTEN", agent.http_address, "COCOON_NODE_LISTEN"),
    ):
        environment = environment_with({"COCOON_ROOT_DIR": str(tmp_path), variable: address, other: "127.0.0.1:0"})
        done = subprocess.run(
            [_COMMAND, "serve"], env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert last.startswith(f"error: {variable}")
        assert "in use" in last
        assert "Traceback" not in done.stderr


def test_systemd_is_told(agent_process: Agents, short_directory: Path) -> None:
    path = short_directory / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(30)
        agent = agent_process({"NOTIFY_SOCKET": str(path)})
        assert listener.recv(100) == b"READY=1"
        agent.stop()
        assert listener.recv(100) == b"STOPPING=1"
    path.unlink()


def test_explain_asks_a_running_agent(
    agent_process: Agents, run_agent: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    agent = agent_process({"VK_NODE_CPU": "3100m"})
    done = run_agent("explain", "cpu", "--address", agent.address)
    assert done.returncode == 0, done.stderr
    assert "VK_NODE_CPU" in done.stdout
    agent.stop()
    gone = run_agent("explain", "cpu", "--address", agent.address)
    assert gone.returncode == 1
    assert gone.stderr.startswith(f"error: the agent at {agent.address} did not answer: UNAVAILABLE")
