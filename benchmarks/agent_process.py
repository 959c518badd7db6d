"""The real agent and its bare peer as processes, started the same way."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from benchmarks.processes import Child, free_port, python, wait_for_port
from cocoonstack.node.v1 import node_resources_pb2 as pb

GET = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
_SERVING_SECONDS = 60
_POLL_SECONDS = 0.002


class Served:
    """A server that answers `GetNodeResources`: its process, its address, and how long its first answer took."""

    def __init__(self, child: Child, port: int) -> None:
        self.child = child
        self.address = f"127.0.0.1:{port}"
        # The port first: a channel that finds it closed would wait for its own next attempt, not for the server.
        wait_for_port(child, port, _SERVING_SECONDS)
        self.first_answer = _first_answer(child, self.address)
        self.start_seconds = time.monotonic() - child.started_at


def _first_answer(child: Child, address: str) -> bytes:
    deadline = time.monotonic() + _SERVING_SECONDS
    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        call: Callable[..., bytes] = channel.unary_unary(GET)
        while True:
            try:
                return call(b"", timeout=5)
            except grpc.RpcError as error:
                child.check_running()
                if time.monotonic() > deadline:
                    raise child.failed(f"no answer within {_SERVING_SECONDS} s, last {error.code()}") from error
                time.sleep(_POLL_SECONDS)


def agent_settings(directory: Path, port: int) -> dict[str, str]:
    """Return the environment of an agent that keeps everything in `directory`, which is created with what it needs."""
    for name in ("root", "state", "run"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    return {
        "VK_NODE_NAME": "bench-node",
        "VK_NODE_IP": "127.0.0.1",
        "COCOON_ROOT_DIR": str(directory / "root"),
        "COCOON_NODE_STATE_DIR": str(directory / "state"),
        "COCOON_NODE_RUN_DIR": str(directory / "run"),
        "COCOON_NODE_LISTEN": f"127.0.0.1:{port}",
        "COCOON_NODE_HTTP_LISTEN": f"127.0.0.1:{free_port()}",
    }


@contextmanager
def agent(extra: Mapping[str, str] | None = None, directory: Path | None = None) -> Iterator[Served]:
    """Run `cocoon-node-agent serve` as it is shipped, with metrics, limits and error mapping on."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        port = free_port()
        settings = agent_settings(directory or Path(made), port) | dict(extra or {})
        with Child(python("-c", "from agent.cli import main; main()", "serve"), settings) as child:
            yield Served(child, port)


@contextmanager
def bare_server(report: bytes) -> Iterator[Served]:
    """Run the bare peer with this encoded NodeResourcesReport."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        port = free_port()
        file = Path(made) / "report"
        file.write_bytes(report)
        with Child(python("-m", "benchmarks.bare_server", f"127.0.0.1:{port}", str(file))) as child:
            yield Served(child, port)


def report_of(answer: bytes) -> bytes:
    """Return the encoded report inside an encoded GetNodeResourcesResponse."""
    return pb.GetNodeResourcesResponse.FromString(answer).report.SerializeToString()
