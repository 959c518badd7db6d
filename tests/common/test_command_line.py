"""What an error that no command handled looks like to people: one sentence, for real programs too."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.command_line import unhandled_error

PROGRAMS = Path(sys.executable).parent
FULL = f"the answer cannot be written to standard output: {os.strerror(errno.ENOSPC)}"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "no space"), FULL),
        (OSError(errno.ENOSPC, "no space", "/a/file"), "internal error, please report it: OSError: "),
        (OSError(errno.ENOENT, "not there"), "internal error, please report it: FileNotFoundError: "),
        (ValueError("odd"), "internal error, please report it: ValueError: odd"),
    ],
)
def test_the_sentence(error: Exception, sentence: str) -> None:
    assert unhandled_error(error).startswith(sentence)


@pytest.mark.parametrize(
    "words",
    [
        ("cocoon-node-agent", "config", "show"),
        ("cocoon-node-agent", "config", "show", "-o", "json"),
        ("cocoon-node-controller", "config", "show", "--kubeconfig", "k", "--agents", "a=127.0.0.1:1"),
        ("cocoon-node-controller", "version"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(("output", "told"), [("full", f"error: {FULL}\n"), ("closed pipe", "")])
def test_an_answer_that_nobody_takes_ends_in_a_sentence(words: tuple[str, ...], output: str, told: str) -> None:
    if output == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [PROGRAMS / words[0], *words[1:]], stdout=descriptor, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(descriptor)
    assert (done.returncode, done.stderr) == (1, told)
