"""The agent's API is its own manual: the real grpcurl lists, describes and calls it, by both reflection versions.

It shows fields under their .proto names, because descriptors from Python carry no JSON names; it accepts both.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devenv import programs
from devenv.cocoon_programs import AgentProcess

_SERVICE = "cocoonstack.node.v1.NodeResources"
_REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def _grpcurl(*arguments: str) -> str:
    command: list[str | Path] = [programs.ensure(["grpcurl"])["grpcurl"], "-plaintext", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_list_describe_and_call(agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process({"VK_NODE_CPU": "32"})

    services = _grpcurl(agent.address, "list").split()
    description = _grpcurl(agent.address, "describe", _SERVICE)
    report = json.loads(_grpcurl(agent.address, f"{_SERVICE}/GetNodeResources"))["report"]

    assert {_SERVICE, "cocoonstack.node.v1.SnapshotCache", "grpc.health.v1.Health", *_REFLECTION} <= set(services)
    assert "rpc GetNodeResources" in description
    assert report["node_name"] == agent.node_name
    assert (report["capacity"]["cpu"], report["allocatable"]["cpu"]) == ("32", "25")


@pytest.mark.parametrize("reflection", _REFLECTION)
def test_each_reflection_version_answers(reflection: str, agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process()
    call = f"{reflection}/ServerReflectionInfo"

    listed = json.loads(_grpcurl("-d", '{"list_services": "*"}', agent.address, call))
    symbol = json.dumps({"file_containing_symbol": _SERVICE})
    described = json.loads(_grpcurl("-d", symbol, agent.address, call))

    assert _SERVICE in [service["name"] for service in listed["list_services_response"]["service"]]
    assert described["file_descriptor_response"]["file_descriptor_proto"]


def test_health_is_serving(agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process()
    answer = json.loads(_grpcurl(agent.address, "grpc.health.v1.Health/Check"))
    assert answer["status"] == "SERVING"
