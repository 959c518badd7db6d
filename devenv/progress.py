"""One way for the development tools to say what they are doing, on standard error only.

Standard output belongs to what was asked for (a Node as JSON, `KUBECONFIG=…`), so nothing here ever writes to it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_REPEAT_SECONDS = 15.0


def say(message: str) -> None:
    """Write one line to standard error at once."""
    print(message, file=sys.stderr, flush=True)


def format_elapsed(seconds: float) -> str:
    """Return `seconds` as people say it: `8 s`, `2 min 05 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


@contextmanager
def step(message: str) -> Iterator[None]:
    """Announce `message`, repeat it with the elapsed time while the body runs, and close with the total.

    A step that fails is closed with `failed`; the error itself is the caller's to report.
    """
    started = time.monotonic()
    finished = threading.Event()

    def repeat() -> None:
        while not finished.wait(_REPEAT_SECONDS):
            say(f"{message} … {format_elapsed(time.monotonic() - started)}")

    say(f"{message} …")
    reporter = threading.Thread(target=repeat, name="progress", daemon=True)
    reporter.start()
    outcome = "failed after"
    try:
        yield
        outcome = "done in"
    finally:
        finished.set()
        reporter.join()
        say(f"{message}: {outcome} {format_elapsed(time.monotonic() - started)}")
