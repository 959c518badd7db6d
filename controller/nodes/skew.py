"""How far an agent's version is from ours, and whether the two are meant to work together.

Why this exists: a fleet is upgraded host by host, so for a while every pair of versions meets. One minor version apart
is tested and silent; further apart things are still tolerated as the API tolerates them, and people are told.

Pure: no I/O, no clock, no logging.
"""

import re
from enum import Enum
from functools import lru_cache

from common.version import VERSION

SKEW = "CocoonVersionSkew"
"""Type of the condition, and reason of the Event, of a Node whose agent is too far away."""

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(?:[.+-][0-9A-Za-z.+-]{0,60})?", re.ASCII)
_MAX_MINORS_APART = 1
# A fleet has a handful of versions; what a broken agent makes up is not kept for ever.
_VERSIONS_REMEMBERED = 64


class Skew(Enum):
    """Where an agent's version stands, seen from ours; only the first three are meant to work together."""

    SAME = "same"
    OLDER = "older"
    NEWER = "newer"
    TOO_OLD = "too_old"
    TOO_NEW = "too_new"
    UNKNOWN = "unknown"

    @property
    def is_too_far(self) -> bool:
        """Whether the two are further apart than what is supported."""
        return self in (Skew.TOO_OLD, Skew.TOO_NEW)


@lru_cache(maxsize=_VERSIONS_REMEMBERED)
def skew_of(agent_version: str, ours: str = VERSION) -> Skew:
    """Compare `MAJOR.MINOR…` of an agent with ours; patch releases never matter."""
    theirs, own = _VERSION.fullmatch(agent_version), _VERSION.fullmatch(ours)
    if theirs is None or own is None:
        return Skew.UNKNOWN
    major, minor = int(theirs[1]) - int(own[1]), int(theirs[2]) - int(own[2])
    if (major, minor) == (0, 0):
        return Skew.SAME
    is_near = major == 0 and abs(minor) <= _MAX_MINORS_APART
    if (major, minor) < (0, 0):
        return Skew.OLDER if is_near else Skew.TOO_OLD
    return Skew.NEWER if is_near else Skew.TOO_NEW


def skew_message(agent_version: str, skew: Skew, ours: str = VERSION) -> str:
    """Return what is wrong and what to do, for a skew that is too far."""
    behind = "agent" if skew is Skew.TOO_OLD else "controller"
    return (
        f"The agent is version {agent_version}, this controller {ours}; they may be one minor version apart."
        f" Upgrade the {behind}, one minor version after the other."
    )
