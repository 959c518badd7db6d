"""Which agents there are: a fixed list, a file. DNS is in `dns_names.py`, EndpointSlices are in `endpointslices.py`.

Why this exists: the fleet changes while the controller runs. Every source publishes the whole set it knows whenever
that set changes, and keeps the last good set when a look fails or comes back empty: an agent that is not listed for a
moment is not gone, and dialling an address that no longer answers costs nothing and writes nothing.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from common.logging import fields
from controller.agents.endpoints import AgentEndpoint, EndpointError, parse_endpoints

log = logging.getLogger(__name__)

Publish = Callable[[tuple[AgentEndpoint, ...]], None]


class AgentSource(Protocol):
    """One way of finding agents."""

    @property
    def name(self) -> str:
        """What it is, for people."""
        ...

    @property
    def problem(self) -> str:
        """What a person should know about the last look; empty while it worked."""
        ...

    @property
    def answered(self) -> bool:
        """Whether a set was published since the start."""
        ...

    async def run(self, publish: Publish) -> None:
        """Publish the whole set now and at each change, until cancelled."""
        ...


class StaticList:
    """The agents named on the command line or in the environment; never changes."""

    def __init__(self, endpoints: Sequence[AgentEndpoint]) -> None:
        """Take the parsed list."""
        self.name = "list"
        self.problem = ""
        self.answered = False
        self._endpoints = tuple(endpoints)

    async def run(self, publish: Publish) -> None:
        """Publish the list once and wait to be cancelled."""
        publish(self._endpoints)
        self.answered = True
        await asyncio.Event().wait()


class EndpointsFile:
    """The agents named in a file, one `name=host:port` a line, read again when the file changes.

    A broken or missing file keeps the last good list; the problem is logged once and shown until it is mended.
    """

    def __init__(self, path: str, poll_seconds: float = 2.0) -> None:
        """Watch `path` by its modification time, inode and size, which follow a swapped symbolic link too."""
        self.name = f"file {path}"
        self.problem = ""
        self.answered = False
        self._path = path
        self._poll_seconds = poll_seconds
        self._seen: tuple[int, int, int] | None = None

    async def run(self, publish: Publish) -> None:
        """Publish the file's list now and at each change."""
        while True:
            try:
                text = await asyncio.to_thread(self._read_if_changed)
                if text is not None:
                    publish(parse_endpoints(text, self._path))
                    self.answered, self.problem = True, ""
            except OSError as error:
                tell_problem(self, f"{self._path}: {os.strerror(error.errno or 0)}")
            except (UnicodeDecodeError, EndpointError) as error:
                tell_problem(self, f"{self._path}: {error}")
            await asyncio.sleep(self._poll_seconds)

    def _read_if_changed(self) -> str | None:
        try:
            stat = os.stat(self._path)
        except OSError:
            self._seen = None
            raise
        state = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if state == self._seen:
            return None
        # Remembered before parsing: a broken file is told once, not at every look.
        self._seen = state
        with open(self._path, encoding="utf-8") as file:
            return file.read()


class _Look(Protocol):
    name: str
    problem: str
    answered: bool


def tell_problem(source: _Look, problem: str) -> None:
    """Keep a source's problem, and log it when it appears or changes, not at each look."""
    if source.answered:
        problem += "; the last good list is kept"
    if source.problem != problem:
        log.warning("agents could not be looked up", extra=fields(source=source.name, problem=problem))
    source.problem = problem
