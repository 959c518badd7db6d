"""Starts programs whose life is tied to ours, keeps their output in a file, and stops them by process id."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from devenv.errors import DevenvError

_WRAPPER = Path(__file__).with_name("die_with_parent.py")
_POLL_SECONDS = 0.05
_STOP_GRACE_SECONDS = 15.0


class ManagedProcess:
    """One running program: `start`, `stop`, `kill`, `signal`; its output is appended to `log_path`.

    The program gets a session of its own, so that Ctrl-C in a terminal reaches only the process that decides in which
    order things stop, and it is killed by the kernel when the thread that called `start` ends.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        stdout_path: Path | None = None,
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log_path = log_path
        self.environment = dict(os.environ if environment is None else environment)
        self.stdout_path = stdout_path or log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running (or last) program; DevenvError when it was never started."""
        if self._process is None:
            raise DevenvError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while running or before the first start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the program; a second start after its end runs it again with the same command."""
        if self.running:
            raise DevenvError(f"{self.name} is already running as process {self.pid}")
        program = shutil.which(self.command[0])
        if program is None:
            raise DevenvError(f"{self.name}: no program {self.command[0]}")
        # -I -S: the wrapper needs nothing but the standard library, and starts in half the time.
        wrapped: list[str | Path] = [sys.executable, "-I", "-S", _WRAPPER, str(os.getpid()), program, *self.command[1:]]
        with self.log_path.open("ab") as log, self.stdout_path.open("ab") as out:
            self._process = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the running program; nothing when it has ended."""
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, deadline_seconds: float) -> int:
        """Return the exit status; DevenvError when the program still runs after `deadline_seconds`."""
        if self._process is None:
            raise DevenvError(f"{self.name} was not started")
        try:
            return self._process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise DevenvError(f"{self.name} (process {self.pid}) did not end within {deadline_seconds:g} s") from None

    def stop(self, grace_seconds: float = _STOP_GRACE_SECONDS) -> int | None:
        """Ask the program to end (SIGTERM), kill it after `grace_seconds`; returns its exit status."""
        if self._process is None:
            return None
        if self.running:
            # A program stopped by SIGSTOP would never see the SIGTERM.
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        try:
            return self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int | None:
        """End the program at once (SIGKILL) and collect it; returns its exit status."""
        if self._process is None:
            return None
        if self.running:
            self._process.kill()
        return self._process.wait()

    def log_tail(self, lines: int = 5) -> str:
        """Return the last lines of the program's log, for messages to a person."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])


def wait_until(condition: Callable[[], bool], deadline_seconds: float, what: str) -> None:
    """Wait until `condition` holds; DevenvError naming `what` when it does not within `deadline_seconds`."""
    deadline = time.monotonic() + deadline_seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise DevenvError(f"{what}: not within {deadline_seconds:g} s")
        time.sleep(_POLL_SECONDS)


@contextmanager
def until_interrupt() -> Iterator[None]:
    """Run the block, then wait; leave quietly at Ctrl-C (or SIGTERM, where it raises KeyboardInterrupt).

    The block tells the user that all is up: who reads that may interrupt before the next statement.
    """
    try:
        yield
        threading.Event().wait()
    except KeyboardInterrupt:
        return
