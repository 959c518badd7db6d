"""An agent with callers worth protecting, and the measure of what it costs."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import grpc
import pytest

from cocoonstack.node.v1 import node_resources_pb2 as pb
from devenv.cocoon_programs import AgentProcess
from tests.support.abuse import Footprint
from tests.support.metrics import metric
from tests.support.waiting import wait_for

GET = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
WATCH = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"
# What the allocator keeps after a storm levels out at about 65.
MOST_GROWTH_MIB = 96
_SECONDS = 10


class Watch(Protocol):
    """The stream of a node's resources, as far as these tests know it."""

    def __next__(self) -> pb.WatchNodeResourcesResponse: ...

    def is_active(self) -> bool: ...

    def cancel(self) -> bool: ...


def raw(channel: grpc.Channel, method: str) -> Callable[..., bytes]:
    """Return a call of one answer that takes and gives encoded messages."""
    call: Callable[..., bytes] = channel.unary_unary(method)
    return call


def watch(channel: grpc.Channel) -> Watch:
    """Begin a stream of the node's resources, as soon as there is a connection."""
    call: Callable[..., Watch] = channel.unary_stream(
        WATCH, response_deserializer=pb.WatchNodeResourcesResponse.FromString
    )
    return call(b"", wait_for_ready=True)


class Besieged:
    """One agent: a controller listens to it, somebody has its Unix socket, and its footprint at rest is known."""

    def __init__(self, agent: AgentProcess, socket_path: Path) -> None:
        self.agent = agent
        self.unix_path = str(socket_path)
        self.footprint = Footprint(agent.process.pid)
        self._tcp = grpc.insecure_channel(agent.address)
        self._unix = grpc.insecure_channel(f"unix:{socket_path}")
        self._watch = watch(self._tcp)
        self.settled()
        self.files_at_rest = self.footprint.open_files()
        self.memory_at_rest_mib = self.footprint.memory_mib()

    def settled(self) -> None:
        """Every kind of caller gets its answer: one with a stream, one on its open connection, a Unix one, a probe."""
        assert next(self._watch).HasField("heartbeat_time")
        self.friends_are_answered()

    def friends_are_answered(self) -> None:
        """The same without waiting for the stream's next message."""
        assert self._watch.is_active()
        for channel in (self._tcp, self._unix):
            answer = pb.GetNodeResourcesResponse.FromString(raw(channel, GET)(b"", timeout=_SECONDS))
            assert answer.report.node_name == self.agent.node_name
        self.probe_is_answered()

    def all_is_well(self) -> bool:
        """Whether the friends are answered; for those who have to wait for it."""
        self.friends_are_answered()
        return True

    def friends_come_back(self) -> None:
        """After the server began anew: open connections find it again, and the controller listens again.

        It may begin anew once more under the very call that asks.
        """
        wait_for(self._come_back, _SECONDS, ignoring=(grpc.RpcError,), what="friends being answered again")

    def _come_back(self) -> bool:
        for channel in (self._tcp, self._unix):
            raw(channel, GET)(b"", timeout=_SECONDS, wait_for_ready=True)
        if not self._watch.is_active():
            self._watch = watch(self._tcp)
            assert next(self._watch).HasField("report")
        self.friends_are_answered()
        return True

    def restarts(self) -> int:
        """How often the server began anew."""
        return int(metric(self.agent.http_address, "cocoon_node_server_restarts_total"))

    def probe_is_answered(self) -> None:
        """The HTTP listener answers who asks at once."""
        with urllib.request.urlopen(
            f"http://{self.agent.http_address}/healthz", timeout=_SECONDS
        ) as answer:  # loopback
            assert answer.read() == b"ok\n"

    def newcomer_is_answered(self) -> None:
        """Somebody without a connection gets one and an answer."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.agent.address, options=options) as channel:
            raw(channel, GET)(b"", timeout=_SECONDS, wait_for_ready=True)

    def at_rest_again(self) -> None:
        """Files are back where they were, and memory is not far from it."""
        self.newcomer_is_answered()
        self.friends_are_answered()
        wait_for(lambda: self.footprint.open_files() <= self.files_at_rest + 2, 30, what="files closed again")
        assert self.growth_mib() <= MOST_GROWTH_MIB
        assert self.agent.process.running

    def growth_mib(self) -> int:
        """How much more memory it has than at rest."""
        return self.footprint.memory_mib() - self.memory_at_rest_mib

    def connections(self) -> dict[str, float]:
        """What its own metrics say of connections, by address."""
        addresses = (self.agent.address, f"unix:{self.unix_path}")
        http = self.agent.http_address
        return {each: metric(http, "cocoon_node_connections", listener=each) for each in addresses}

    def connect(self) -> socket.socket:
        """Connect to the gRPC port."""
        return _tcp(self.agent.address)

    def connect_unix(self) -> socket.socket:
        """Connect to the Unix socket."""
        with contextlib.ExitStack() as on_failure:
            connection = on_failure.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(self.unix_path)
            on_failure.pop_all()
        return connection

    def connect_http(self) -> socket.socket:
        """Connect to the HTTP listener."""
        return _tcp(self.agent.http_address)

    def close(self) -> None:
        """Let the callers go."""
        self._watch.cancel()
        self._tcp.close()
        self._unix.close()


def _tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=_SECONDS)


@pytest.fixture
def besieged(
    agent_process: Callable[..., AgentProcess], short_directory: Path, unique_name: Callable[[str], str]
) -> Iterator[Callable[..., Besieged]]:
    """A function that starts an agent with its callers: `besieged(settings={…})`."""
    started: list[Besieged] = []

    def start(settings: dict[str, str] | None = None) -> Besieged:
        path = short_directory / f"{unique_name('own')}-{os.getpid()}" / "agent.sock"
        agent = agent_process(settings)
        agent.settings["COCOON_NODE_LISTEN"] = f"{agent.address},unix:{path}"
        agent.restart()
        started.append(Besieged(agent, path))
        return started[-1]

    yield start
    for each in started:
        each.close()
