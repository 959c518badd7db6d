"""A line for each change: who asked under which id for what; the same id on every line that the call causes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1 import snapshot_cache_pb2_grpc as rpc
from devenv.cocoon_programs import AgentProcess
from devenv.vm_snapshots import write_snapshot
from tests.support.snapshot_calls import snapshots
from tests.support.waiting import wait_for

Start = Callable[..., AgentProcess]
VM = "vk-default-web-0"


def entries(agent: AgentProcess) -> list[dict[str, Any]]:
    """Every line of the log, each of which has to be one JSON object that names the node."""
    found = [json.loads(line) for line in agent.process.log_path.read_text().splitlines()]
    assert all(entry["node"] == agent.node_name for entry in found)
    return found


def calls(agent: AgentProcess) -> list[dict[str, Any]]:
    return [entry for entry in entries(agent) if entry["logger"] == "agent.rpc.call_log"]


def purge(agent: AgentProcess, vm: str, *metadata: tuple[str, str | bytes]) -> grpc.StatusCode:
    request = pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name=vm), reason=pb.PURGE_REASON_REQUESTED)
    with grpc.insecure_channel(agent.address) as channel:
        try:
            rpc.SnapshotCacheStub(channel).PurgeSnapshots(request, metadata=metadata, timeout=10)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def test_a_change_is_one_line_with_all_ids(agent_process: Start) -> None:
    agent = agent_process({"COCOON_NODE_LOG_FORMAT": "json"})
    write_snapshot(agent.root / "snapshots", VM)
    wait_for(lambda: VM in snapshots(agent.address))
    assert purge(agent, VM, ("x-request-id", "ticket-4711")) is grpc.StatusCode.OK

    (line,) = calls(agent)
    assert (line["level"], line["method"], line["code"]) == ("info", "PurgeSnapshots", "OK")
    assert (line["request_id"], line["vm"], line["snapshots"]) == ("ticket-4711", VM, [VM])
    assert line["peer"].startswith("ipv4:127.0.0.1:")
    assert {entry["request_id"] for entry in entries(agent) if "request_id" in entry} == {"ticket-4711"}


def test_a_refused_change_says_why(agent_process: Start) -> None:
    agent = agent_process({"COCOON_NODE_LOG_FORMAT": "json"})
    assert purge(agent, "vk-../etc") is grpc.StatusCode.INVALID_ARGUMENT
    (line,) = calls(agent)
    assert (line["code"], line["vm"]) == ("INVALID_ARGUMENT", "vk-../etc")
    assert line["reason"]
    assert line["problem"]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param((), id="none"),
        pytest.param((("x-request-id", ""),), id="empty"),
        pytest.param((("x-request-id", "a b"),), id="a space"),
        pytest.param((("x-request-id", 'x" level="error'),), id="a field of ours"),
        pytest.param((("x-request-id", "y" * 65),), id="too long"),
        pytest.param((("x-request-id-bin", b"\n\x00"),), id="bytes"),
    ],
)
def test_what_is_no_id_is_replaced(agent_process: Start, given: tuple[tuple[str, str | bytes], ...]) -> None:
    agent = agent_process({"COCOON_NODE_LOG_FORMAT": "json"})
    purge(agent, VM, *given)
    (line,) = calls(agent)
    assert len(line["request_id"]) == 16
    assert set(line["request_id"]) <= set("0123456789abcdef")


def test_hostile_names_forge_nothing(agent_process: Start) -> None:
    """As text: one printable line for each call, with the words of ours where they belong."""
    hostile = ["a\nb", "a\r\n2026-01-01T00:00:00.000Z info    agent.app: forged", "\x1b[2J", "a\u2028b", "x code=OK"]
    agent = agent_process()
    before = len(agent.process.log_path.read_text().splitlines())
    for name in hostile:
        assert purge(agent, name) is grpc.StatusCode.INVALID_ARGUMENT
    lines = agent.process.log_path.read_text().splitlines()[before:]
    assert len(lines) == len(hostile)
    for line in lines:
        assert line.isprintable()
        assert " agent.rpc.call_log: call method=PurgeSnapshots code=INVALID_ARGUMENT reason=" in line
        assert " code=OK" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", line)


def test_readings_are_told_at_level_debug_only(agent_process: Start) -> None:
    for level, expected in (("info", 0), ("debug", 1)):
        agent = agent_process({"COCOON_NODE_LOG_FORMAT": "json", "COCOON_NODE_LOG_LEVEL": level})
        snapshots(agent.address)
        assert [line["method"] for line in calls(agent)] == ["ListSnapshots"] * expected
