"""Runs the cocoon engine's command line and understands how it answers.

Data come on standard output, coloured log lines and errors on standard error. An error of the engine is never a verdict
on a snapshot: whatever is not plainly an answer becomes StoreUnavailableError with the engine's own words.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agent.snapshots.errors import StoreFault, StoreUnavailableError

READ_TIMEOUT_SECONDS = 60.0
NO_SNAPSHOTS = "No snapshots found."
NO_VMS = "No VMs found."
MAX_QUOTED_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Where the engine's program and directories are: absolute paths."""

    program: str
    root_dir: str
    run_dir: str
    log_dir: str

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line."""
        directories = ["--root-dir", self.root_dir, "--run-dir", self.run_dir, "--log-dir", self.log_dir]
        return [self.program, *directories, *arguments]


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """How a command ended: exit status (negative: the signal) and both outputs as text."""

    status: int
    output: str
    errors: str

    def complaint(self) -> str:
        """Return the engine's own words in one plain line: its `Error:` line, else its last line."""
        lines = [_UNPRINTABLE.sub(" ", _COLOUR.sub("", line)).strip() for line in self.errors.splitlines()]
        lines = [line for line in lines if line]
        chosen = next((line for line in reversed(lines) if line.startswith("Error:")), lines[-1] if lines else "")
        return chosen[:MAX_QUOTED_CHARACTERS] or "it said nothing"


def read_from_engine(settings: EngineSettings, *arguments: str) -> EngineAnswer:
    """Run a command that only reads. One that does not end in time is killed, with its children: it changes nothing."""
    with _start(settings, arguments, subprocess.PIPE, subprocess.PIPE) as process:
        try:
            output, errors = process.communicate(timeout=READ_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            _kill_group(process)
            process.communicate()
            raise StoreUnavailableError(
                f"{_shown(arguments)} did not answer within {READ_TIMEOUT_SECONDS:.0f} s",
                fault=StoreFault.ENGINE_TIMEOUT,
            ) from error
    return EngineAnswer(
        status=process.returncode, output=output.decode("utf-8", "replace"), errors=errors.decode("utf-8", "replace")
    )


class EngineRemoval:
    """A running `snapshot rm` of one snapshot by its full id; never killed, not even by the death of the agent.

    Its outputs go to memory, not to pipes: the first log line after the agent's death would end it with SIGPIPE.
    """

    def __init__(self, settings: EngineSettings, snapshot_id: str, *, inherited: int) -> None:
        self._arguments = ("snapshot", "rm", "--", snapshot_id)
        self._errors = os.memfd_create("cocoon-snapshot-rm")
        try:
            self._process = _start(settings, self._arguments, subprocess.DEVNULL, self._errors, inherited=(inherited,))
        except StoreUnavailableError:
            os.close(self._errors)
            raise
        self.pid = self._process.pid

    def wait(self) -> EngineAnswer:
        """Wait for its end, however long it takes. Call once."""
        status = self._process.wait()
        try:
            errors = os.pread(self._errors, 1 << 16, 0)
        finally:
            os.close(self._errors)
        return EngineAnswer(status=status, output="", errors=errors.decode("utf-8", "replace"))

    def failure(self, answer: EngineAnswer) -> StoreUnavailableError:
        """Return the error for a removal that ended badly."""
        return failed(self._arguments, answer)


def failed(arguments: Sequence[str], answer: EngineAnswer) -> StoreUnavailableError:
    """Return the error for a command that ended badly."""
    return StoreUnavailableError(
        f"{_shown(arguments)} ended with status {answer.status}: {answer.complaint()}", fault=StoreFault.ENGINE_FAILED
    )


def list_records(settings: EngineSettings, *arguments: str, none_text: str) -> list[Mapping[str, Any]]:
    """Run a command that lists objects as JSON; `none_text` is what it says instead when there are none."""
    answer = read_from_engine(settings, *arguments)
    if answer.status != 0:
        raise failed(arguments, answer)
    text = answer.output.strip()
    if text == none_text:
        return []
    try:
        records = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(arguments, str(error)) from error
    if records is None:
        return []
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise _unreadable(arguments, "it is not a list of objects")
    return records


def _start(
    settings: EngineSettings, arguments: Sequence[str], output: int, errors: int, *, inherited: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start a command in a process group of its own, so that no signal meant for the agent reaches it."""
    try:
        return subprocess.Popen(
            settings.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            process_group=0,
            pass_fds=inherited,
            cwd="/",
        )
    except OSError as error:
        raise StoreUnavailableError(
            f"cannot run the engine {settings.program}: {error.strerror}; set VK_COCOON_BIN to its path",
            fault=StoreFault.ENGINE_MISSING,
        ) from error


def _unreadable(arguments: Sequence[str], cause: str) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"the answer of {_shown(arguments)} cannot be understood: {cause[:MAX_QUOTED_CHARACTERS]}",
        fault=StoreFault.ENGINE_ANSWER_UNREADABLE,
    )


def _shown(arguments: Sequence[str]) -> str:
    return "cocoon " + " ".join(arguments)[:MAX_QUOTED_CHARACTERS]


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
