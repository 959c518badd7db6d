"""How long the controller takes from its start until it first asks the API, of which there is only a socket."""

import socket
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.deletion_cluster import write_kubeconfig
from benchmarks.harness import Row, Scale, at_most, figure
from benchmarks.processes import BenchmarkError, Child, free_port, python

NAME = "deletion-start"
_SECONDS = 30.0


def run(scale: Scale) -> list[Row]:
    """Return the row for the median of several starts; the first one, which compiles, is left out."""
    took = sorted([_start_ms() for _ in range(2 * scale.rounds + 1)][1:])
    detail = f"shortest {figure(took[0])} ms, longest {figure(took[-1])} ms of {len(took)}"
    what = "controller start until it first asks the API"
    return [at_most(NAME, what, "", statistics.median(took), 400, "ms", detail)]


def _start_ms() -> float:
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made, socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS)
        kubeconfig = write_kubeconfig(Path(made) / "kubeconfig", f"http://127.0.0.1:{server.getsockname()[1]}")
        settings = ("--kubeconfig", str(kubeconfig), "--agents", f"a=127.0.0.1:{free_port()}", "--http-listen", "off")
        started = time.perf_counter()
        with Child(python("-c", "from controller.cli import main; main()", "run", *settings)) as controller:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(_SECONDS)
                    asked = connection.recv(4)
            except TimeoutError:
                raise controller.failed(f"nothing was asked within {_SECONDS:g} s") from None
            took = time.perf_counter() - started
        if asked != b"GET ":
            raise BenchmarkError(f"the controller began with {asked!r}")
        return took * 1000
