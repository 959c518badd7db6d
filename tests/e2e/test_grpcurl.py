"""The agent's API is its own manual: the real grpcurl lists, describes and calls it, by both reflection versions,
and every command of the cookbook page works as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from devenv import programs
from devenv.cocoon_programs import AgentProcess
from devenv.toolchain import REPOSITORY

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
    assert report["nodeName"] == agent.node_name
    assert (report["capacity"]["cpu"], report["allocatable"]["cpu"]) == ("32", "25")


@pytest.mark.parametrize("reflection", _REFLECTION)
def test_each_reflection_version_answers(reflection: str, agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process()
    call = f"{reflection}/ServerReflectionInfo"

    listed = json.loads(_grpcurl("-d", '{"list_services": "*"}', agent.address, call))
    symbol = json.dumps({"file_containing_symbol": _SERVICE})
    described = json.loads(_grpcurl("-d", symbol, agent.address, call))

    assert _SERVICE in [service["name"] for service in listed["listServicesResponse"]["service"]]
    assert described["fileDescriptorResponse"]["fileDescriptorProto"]


def test_health_is_serving(agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process()
    answer = json.loads(_grpcurl(agent.address, "grpc.health.v1.Health/Check"))
    assert answer["status"] == "SERVING"


def test_every_command_of_the_cookbook_works(agent_process: Callable[..., AgentProcess]) -> None:
    agent = agent_process()
    page = (REPOSITORY / "docs/grpcurl.md").read_text()
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    program = programs.ensure(["grpcurl"])["grpcurl"]
    environment = os.environ | {"AGENT": agent.address, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    answers = {
        command: subprocess.run(  # the page's own text, as a person would paste it
            ["sh", "-c", command], capture_output=True, text=True, env=environment, check=False, timeout=30
        )
        for command in commands
    }

    assert len(commands) >= 10
    assert {command: answer.stderr for command, answer in answers.items() if answer.returncode} == {}
    assert {command for command, answer in answers.items() if not answer.stdout.strip()} == set()
