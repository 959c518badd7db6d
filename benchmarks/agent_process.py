"""The real agent and its bare peer as processes, started the same way."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from benchmarks.processes import Child, free_port, python, wait_for_port
from cocoonstack.node.v1 import node_resources_pb2 as pb

NODE_NAME = "bench-node"
GET = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
_SERVING_SECONDS = 60
_POLL_SECONDS = 0.002


class Served:
    """A server that answers `GetNodeResources`: its process, its address, and how long its first answer took."""

    def __init__(self, child: Child, port: int, client_tls: Path | None = None) -> None:
        self.child = child
        self.address = f"127.0.0.1:{port}"
        # The port first: a channel that finds it closed would wait for its own next attempt, not for the server.
        wait_for_port(child, port, _SERVING_SECONDS)
        with _channel(self.address, client_tls) as channel:
            self.first_answer = _first_answer(child, channel)
        self.start_seconds = time.monotonic() - child.started_at


def _channel(address: str, client_tls: Path | None) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", NODE_NAME)]
    if client_tls is None:
        return grpc.insecure_channel(address, options=options)
    authorities, key, certificate = ((client_tls / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt"))
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities, key, certificate), options=options)


def _first_answer(child: Child, channel: grpc.Channel) -> bytes:
    deadline = time.monotonic() + _SERVING_SECONDS
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
        "VK_NODE_NAME": NODE_NAME,
        "VK_NODE_IP": "127.0.0.1",
        "COCOON_ROOT_DIR": str(directory / "root"),
        "COCOON_NODE_STATE_DIR": str(directory / "state"),
        "COCOON_NODE_RUN_DIR": str(directory / "run"),
        "COCOON_NODE_LISTEN": f"127.0.0.1:{port}",
        "COCOON_NODE_HTTP_LISTEN": f"127.0.0.1:{free_port()}",
    }


@contextmanager
def agent(
    extra: Mapping[str, str] | None = None, directory: Path | None = None, client_tls: Path | None = None
) -> Iterator[Served]:
    """Run `cocoon-node-agent serve` as it is shipped, with metrics, limits and error mapping on.

    `client_tls` has the files with which an agent that was given certificates is asked.
    """
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        port = free_port()
        settings = agent_settings(directory or Path(made), port) | dict(extra or {})
        with Child(python("-c", "from agent.cli import main; main()", "serve"), settings) as child:
            yield Served(child, port, client_tls)


@contextmanager
def tls_agent(directory: Path, client_tls: Path) -> Iterator[Served]:
    """Run the same agent with the TLS files of a directory."""
    settings = {
        "COCOON_NODE_TLS_CERT_FILE": str(directory / "tls.crt"),
        "COCOON_NODE_TLS_KEY_FILE": str(directory / "tls.key"),
        "COCOON_NODE_TLS_CLIENT_CA_FILE": str(directory / "ca.crt"),
    }
    with agent(settings, client_tls=client_tls) as served:
        yield served


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
