"""Names that need work, each worked on by one worker at a time, failing ones less and less often.

A name added many times is worked on once; added while being worked on, once more afterwards. First in, first out, so a
busy name cannot keep the others waiting. A failed name waits 1 s, 2 s, … up to 60 s, jittered by half, or as long as
the server asked; success forgets its failures. Adding a name that waits for its backoff does not shorten the wait.
"""

import asyncio
import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from common.logging import fields
from controller.kube.errors import KubeError, RetryLater

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pause after failures: doubling from `first_seconds` to `longest_seconds`."""

    first_seconds: float = 1.0
    longest_seconds: float = 60.0

    def pause_seconds(self, failures: int) -> float:
        """Pause after the given number of failures in a row (1 = first), jittered between half and whole."""
        whole = min(self.first_seconds * 2.0 ** min(failures - 1, 32), self.longest_seconds)
        return whole * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, no secret


class WorkQueue:
    """A queue of names for one kind of work. Every method but `run` may be called at any time from the event loop."""

    def __init__(self, *, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Empty; `clock` gives monotonic seconds."""
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._ready: deque[str] = deque()
        self._waiting: set[str] = set()  # in _ready, or to be put there when its work ends
        self._working: set[str] = set()
        self._failures: dict[str, int] = {}
        self._blocked_until: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}  # earliest timer per name; an entry of _timers that differs is outdated
        self._wakeup = asyncio.Event()
        self._available = asyncio.Semaphore(0)

    def __len__(self) -> int:
        """Names ready or being worked on."""
        return len(self._waiting | self._working)

    def add(self, name: str) -> None:
        """Work on this name soon; after its backoff if it failed last."""
        blocked = self._blocked_until.get(name)
        if blocked is not None:
            self._schedule(name, blocked)
        elif name not in self._waiting:
            self._waiting.add(name)
            if name not in self._working:
                self._offer(name)

    def add_after(self, name: str, seconds: float) -> None:
        """Work on this name in `seconds`, or earlier if something else asks for it."""
        if seconds <= 0:
            self.add(name)
        else:
            self._schedule(name, self._clock() + seconds)

    def discard(self, name: str) -> None:
        """Forget timers and failures of a name that is no longer of interest."""
        self._due.pop(name, None)
        self._failures.pop(name, None)
        self._blocked_until.pop(name, None)

    def hasten(self, name: str) -> None:
        """What made this name fail is over: it waits for its backoff no longer, and its failures are forgotten."""
        self._failures.pop(name, None)
        if self._blocked_until.pop(name, None) is not None:
            self.add(name)

    def hasten_all(self, within_seconds: float) -> None:
        """The same for every name, each at a moment of its own within so many seconds."""
        now = self._clock()
        for name, blocked in list(self._blocked_until.items()):
            self._failures.pop(name, None)
            at = now + random.uniform(0.0, within_seconds)  # noqa: S311 - spreads load, no secret
            if at < blocked:
                self._blocked_until[name] = at
                self._schedule(name, at)

    def failures(self, name: str) -> int:
        """How often in a row this name has failed."""
        return self._failures.get(name, 0)

    async def run(self, work: Callable[[str], Awaitable[None]], *, workers: int) -> None:
        """Work until cancelled, on at most `workers` names at once.

        An error that `work` raises puts its name off; it is logged here and nowhere else.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run_timers())
            for _ in range(workers):
                group.create_task(self._run_worker(work))

    async def _run_worker(self, work: Callable[[str], Awaitable[None]]) -> None:
        while True:
            await self._available.acquire()
            name = self._ready.popleft()
            self._waiting.discard(name)
            self._working.add(name)
            try:
                await work(name)
            except KubeError as exc:
                self._put_off(name, exc.retry_after_seconds if isinstance(exc, RetryLater) else 0.0)
                _LOG.warning("work failed, tried again", extra=fields(name=name, reason=exc.reason, error=str(exc)))
            except Exception:
                # The last line of defence: a fault in one name's work must not end the work on all others.
                self._put_off(name, 0.0)
                _LOG.exception("work failed unexpectedly, tried again", extra=fields(name=name))
            else:
                self._failures.pop(name, None)
            finally:
                self._working.discard(name)
                if name in self._waiting:
                    self._waiting.discard(name)
                    self.add(name)

    def _put_off(self, name: str, at_least_seconds: float) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        pause = max(self._backoff.pause_seconds(failures), at_least_seconds)
        self._blocked_until[name] = self._clock() + pause
        self._schedule(name, self._blocked_until[name])

    def _offer(self, name: str) -> None:
        self._ready.append(name)
        self._available.release()

    def _schedule(self, name: str, at: float) -> None:
        if at >= self._due.get(name, float("inf")):
            return
        self._due[name] = at
        heapq.heappush(self._timers, (at, name))
        self._wakeup.set()

    async def _run_timers(self) -> None:
        while True:
            self._wakeup.clear()
            now = self._clock()
            while self._timers and self._timers[0][0] <= now:
                at, name = heapq.heappop(self._timers)
                if self._due.get(name) == at:
                    del self._due[name]
                    if self._blocked_until.get(name, now) <= now:
                        self._blocked_until.pop(name, None)
                    self.add(name)
            pause = self._timers[0][0] - self._clock() if self._timers else None
            try:
                async with asyncio.timeout(pause):
                    await self._wakeup.wait()
            except TimeoutError:
                continue
