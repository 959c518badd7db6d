"""What the brake has counted, as an annotation of the leader's Lease: it outlives the process.

Why this exists: a controller that crashes on what it sees and starts again would otherwise be given a hundred purges
anew each time, which is when the brake is needed most. The Lease is the one object that every leader reads before it
acts, and its write fails for whoever does not lead any more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final

import msgspec

from common.logging import fields
from controller.deletion.brake import Brake

log = logging.getLogger(__name__)

ANNOTATION: Final = "node.cocoonstack.io/unseen-purges"
_LONGEST_RECORD: Final = 10_000
_Count = Annotated[int, msgspec.Meta(ge=0)]


class BrakeRecord:
    """Writes the brake's count before it is used, and reads that of the leader before."""

    def __init__(
        self,
        brake: Brake,
        annotate: Callable[[str, str], Awaitable[None]],
        annotations: Callable[[], Mapping[str, str]],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """`annotate` and `annotations` are of the Lease; `clock` gives monotonic seconds, `wall` Unix seconds."""
        self._brake = brake
        self._annotate = annotate
        self._annotations = annotations
        self._clock = clock
        self._wall = wall
        self._written = 0
        self._writing = asyncio.Lock()

    def learn(self) -> None:
        """Go on from what the Lease says; called when the leadership begins."""
        text = self._annotations().get(ANNOTATION, "")
        if not text:
            return
        now, wall = self._clock(), self._wall()
        entries = _entries(text)
        if entries is None:
            log.warning("the Lease's count of purges cannot be read: all are counted", extra=fields(text=text[:200]))
            self._brake.learn_nothing_good(now)
        else:
            self._brake.learn([(wall - at, count) for at, count in entries], now)

    async def cover(self) -> bool:
        """Have everything written that the brake has counted. Return whether that took a while.

        Raises NotLeadingError and KubeError; then nothing that was counted since may be done.
        """
        if self._written == self._brake.version:
            return False
        async with self._writing:
            version, now, wall = self._brake.version, self._clock(), self._wall()
            if self._written != version:
                entries = [(round(wall - age, 3), count) for age, count in self._brake.counted(now)]
                await self._annotate(ANNOTATION, msgspec.json.encode(entries).decode())
                self._written = version
        return True


def _entries(text: str) -> list[tuple[float, int]] | None:
    """Return Unix seconds and counts, None when somebody else wrote this."""
    if len(text) > _LONGEST_RECORD:
        return None
    try:
        return msgspec.json.decode(text, type=list[tuple[float, _Count]])
    except msgspec.DecodeError:
        return None
