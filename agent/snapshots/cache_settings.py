"""What an operator sets about the snapshot cache, as the cache needs it.

Why this exists: the use cases are built and tested without the agent's command line and environment.
"""

import enum
from dataclasses import dataclass, field

from agent.snapshots.collection import GRACE_SECONDS, Policy, Watermarks

# Without a word on who owns what for longer than this, a controller's purges are deferred.
SYNC_MAX_AGE_SECONDS = 900.0


class CollectionMode(enum.StrEnum):
    """Whether collections remove, only tell, or do nothing; `REPORT` and `OFF` are for maintenance."""

    ON = "on"
    REPORT = "report"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Settings of the cache. `standalone` says that no controller will ever come."""

    node_name: str
    trusted_vm_prefixes: tuple[str, ...] = ()
    standalone: bool = False
    collection: CollectionMode = CollectionMode.ON
    policy: Policy = field(default_factory=Policy)
    watermarks: Watermarks = field(default_factory=Watermarks)
    grace_seconds: float = GRACE_SECONDS
    sync_max_age_seconds: float = SYNC_MAX_AGE_SECONDS
    refresh_seconds: float = 2.0
    full_scan_seconds: float = 6 * 3600.0
    watermark_seconds: float = 10.0
    policy_seconds: float = 600.0
