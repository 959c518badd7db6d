"""How many calls of which kind may run at once.

Why this exists: a host is not brought down by its askers. Reads, changes and watches have room of their own, so that a
crowd of one kind never starves another; the server's own limit would refuse health checks with the rest.
"""

from enum import Enum

from agent.rpc.errors import too_many_requests


class Kind(Enum):
    """What a call does, with the words for the message to a caller that was refused."""

    READ = "reads"
    CHANGE = "changes"
    WATCH = "watches"


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


def is_unlimited(method: str) -> bool:
    """Whether a method is outside all limits: health and reflection."""
    return method.startswith("/grpc.")


class Room:
    """The calls of one kind that run now, and how many may."""

    __slots__ = ("active", "kind", "limit")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.limit = LIMITS[kind]
        self.active = 0

    def enter(self) -> None:
        """Count one more call that runs; raises the error for its caller, uncounted, when there is no room."""
        if self.active >= self.limit:
            raise too_many_requests(self.kind.value, self.limit)
        self.active += 1
