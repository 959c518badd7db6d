"""Processes under measurement: started, watched from outside, and ended by their own id."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parent.parent
_END_SECONDS = 10


class BenchmarkError(Exception):
    """A measurement that could not be made, with what to do about it."""


_COMPILED = tempfile.TemporaryDirectory(prefix="cocoon-node-bench-")


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter with these arguments."""
    return [sys.executable, *arguments]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which a child finds this checkout, and no setting of an agent or controller.

    Its modules are compiled once, as an installation's are, whatever this machine does for checkouts.
    """
    left_out = ("VK_", "COCOON_", "PYTHONDONTWRITEBYTECODE")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}", "PYTHONPYCACHEPREFIX": _COMPILED.name}
    return inherited | paths | dict(extra or {})


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Child:
    """A child process whose CPU time and memory are read from outside, ended when the block is left.

    Its standard error goes to a file; the end of it is part of the error when the child fails.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed in end)
        self._buffer = b""
        self.started_at = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            env=environment(env),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Stop the child: asked first, killed when it does not go."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._errors.close()

    def failed(self, what: str) -> BenchmarkError:
        """Return an error that says what went wrong and what the child said last."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-800:]
        name = " ".join(self._command)[:160]
        return BenchmarkError(f"{what}: {name}: status {self._process.poll()}; it said: {said or 'nothing'}")

    def check_running(self) -> None:
        """Raise when the child has ended."""
        if self._process.poll() is not None:
            raise self.failed("a measured process ended early")

    def tell(self, line: str) -> None:
        """Send the child a line on standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def ask_to_end(self) -> None:
        """Send SIGTERM; what it says last can still be read."""
        self._process.send_signal(signal.SIGTERM)

    def end_input(self) -> None:
        """Close the child's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def read_line(self, seconds: float) -> str:
        """Return the child's next line of output, or raise after this many seconds."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise self.failed(f"no line of output within {seconds:g} s")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                self._process.wait(_END_SECONDS)
                raise self.failed("a measured process ended early")
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    def read_json(self, seconds: float) -> dict[str, object]:
        """Return the child's next line as the JSON object it is."""
        parsed: dict[str, object] = json.loads(self.read_line(seconds))
        return parsed

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its threads so far, in seconds, exact to the nanosecond."""
        # The kernel's per-process CPU clock of another process: its complemented id above the three bits of the kind.
        return time.clock_gettime((~self.pid << 3) | 2)

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        return self._status("VmRSS")

    def peak_rss_bytes(self) -> int:
        """Return the most resident memory it has had."""
        return self._status("VmHWM")

    def _status(self, key: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == key:
                return int(rest.split()[0]) * 1024
        raise self.failed(f"no {key} in its status")


def wait_for_port(child: Child, port: int, seconds: float) -> None:
    """Return as soon as a loopback port of the child takes connections."""
    deadline = time.monotonic() + seconds
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        child.check_running()
        if time.monotonic() > deadline:
            raise child.failed(f"port {port} did not open within {seconds:g} s")
        time.sleep(0.001)


def output_of(command: Sequence[str], seconds: float) -> dict[str, object]:
    """Run a command to its end and return the JSON object of its last line."""
    with Child(command) as child:
        return child.read_json(seconds)
