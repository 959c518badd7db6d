"""How many calls of which kind may run at once.

Why this exists: a host is not brought down by its askers. Reads, changes and watches have room of their own, so that a
crowd of one kind never starves another; the server's own limit would refuse health checks with the rest.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from enum import Enum

from agent.rpc.errors import too_many_requests


class Kind(Enum):
    """What a call does, with the words for the message to a caller that was refused."""

    READ = "reads"
    CHANGE = "changes"
    WATCH = "watches"


# Whoever reads an answer at all takes a part of it in less.
SLOW_SECONDS = 1.0
LIMITS = {Kind.READ: 64, Kind.CHANGE: 16, Kind.WATCH: 32}

NODE_WATCH = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"

_SNAPSHOTS = "/cocoonstack.node.v1.SnapshotCache/"
_KINDS = {
    "/cocoonstack.node.v1.NodeResources/GetNodeResources": Kind.READ,
    NODE_WATCH: Kind.WATCH,
    _SNAPSHOTS + "ListSnapshots": Kind.READ,
    _SNAPSHOTS + "GetSnapshot": Kind.READ,
    _SNAPSHOTS + "GetCacheUsage": Kind.READ,
    _SNAPSHOTS + "VerifySnapshot": Kind.READ,
    _SNAPSHOTS + "WatchSnapshots": Kind.WATCH,
}


def kind_of(method: str) -> Kind:
    """Return the kind of a method by its full name; what is not known as reading counts as changing."""
    return _KINDS.get(method, Kind.CHANGE)


def is_read_in_parts(method: str, kind: Kind) -> bool:
    """Whether the answer may be megabytes: such a one counts as running until the caller has taken it."""
    return kind is Kind.READ and method.startswith(_SNAPSHOTS)


def is_unlimited(method: str) -> bool:
    """Whether a method is outside all limits: health and reflection."""
    return method.startswith("/grpc.")


class Room:
    """The calls of one kind that run now, and how many may."""

    __slots__ = ("_sending", "active", "kind", "limit")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.limit = LIMITS[kind]
        self.active = 0
        # The one that waits longest for its caller first.
        self._sending: dict[asyncio.Timeout, float] = {}

    def enter(self) -> None:
        """Count one more call that runs; raises the error for its caller, uncounted, when there is no room."""
        if self.active >= self.limit and not self._take_back():
            raise too_many_requests(self.kind.value, self.limit)
        self.active += 1

    @contextlib.contextmanager
    def sending(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Mark a call as waiting for its caller to read: it may lose its place, by its time limit, to somebody else."""
        self._sending[limit] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._sending.pop(limit, None)

    def _take_back(self) -> bool:
        """End the sending that has waited longest, unless it only just began; whether there was one."""
        now = asyncio.get_running_loop().time()
        limit, since = next(iter(self._sending.items()), (None, now))
        if limit is None or now - since < SLOW_SECONDS:
            return False
        del self._sending[limit]
        limit.reschedule(now)
        return True
