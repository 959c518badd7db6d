"""How often one Node is written.

Why this exists: a Node is written when its agent's report changes, and an agent that is broken, or in other hands, may
report a change every millisecond. That is to cost the API server little, and other Nodes nothing.
"""

from dataclasses import dataclass

BURST = 30.0
PER_SECOND = 1.0


@dataclass(slots=True)
class WriteBudget:
    """`BURST` writes at once, and `PER_SECOND` in the long run. Times are monotonic seconds."""

    _left: float = BURST
    _at: float = float("-inf")

    def pause(self, now: float) -> float:
        """Return the seconds until the next write may be; zero when it may be now."""
        self._left = min(BURST, self._left + max(0.0, now - self._at) * PER_SECOND)
        self._at = now
        return max(0.0, (1.0 - self._left) / PER_SECOND)

    def spend(self) -> None:
        """Count a write."""
        self._left -= 1.0
