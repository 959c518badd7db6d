"""How long work shows that it goes on: a bar on a terminal, plain lines otherwise.

Why this exists: a collection, or a purge or a check of many, takes its time, and whoever waits wants to see how far it
is; what a program reads must not have a bar in it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb


@contextlib.contextmanager
def progress(label: str, steps: int) -> Iterator[Callable[[], None]]:
    """Give a function to call after each of several steps; the bar is on standard error, if that is a terminal."""
    if steps < 2 or not sys.stderr.isatty():
        yield _show_nothing
        return
    with click.progressbar(length=steps, label=label, file=sys.stderr) as bar:
        yield lambda: bar.update(1)


def follow_collection(messages: "Iterator[pb.CollectGarbageResponse]", total: int | None) -> None:
    """Print a collection while it runs: a bar when its length is known, plain lines otherwise."""
    from agent.snapshot_printing import collection_line

    if total is None or not sys.stderr.isatty():
        for message in messages:
            click.echo(collection_line(message))
        return
    with click.progressbar(length=total, label="collecting", file=sys.stderr) as bar:
        for message in messages:
            if message.HasField("item"):
                bar.update(1)
    click.echo(collection_line(message))


def _show_nothing() -> None:
    """Show nothing."""
