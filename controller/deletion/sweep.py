"""Looks over all agents every second: who is connected anew, who was not told for long, what is over.

Why this exists: events wake work up, but a connection that comes back sends none, and what an event missed must be
found all the same. Whoever waits for a backoff because of an agent or an API server that is back waits no longer.
"""

import asyncio
import zlib
from collections.abc import Callable

from controller.agents.cache_client import AgentChannels
from controller.deletion.books import Books
from controller.deletion.brake import Brake
from controller.deletion.metrics import BRAKED, OLDEST_UNDONE, QUEUE_DEPTH, UNDONE
from controller.deletion.pace import Pace
from controller.deletion.settling import PodSource
from controller.kube.queue import WorkQueue

# Over which what waited for a repaired API server is spread.
_SPREAD_SECONDS = 5.0


class Sweep:
    """`run` until cancelled. `queues` are those of the reconciler by name, `syncs` the one of nodes to be told."""

    def __init__(
        self,
        *,
        pods: PodSource,
        channels: AgentChannels,
        books: Books,
        queues: dict[str, WorkQueue],
        brake: Brake,
        pace: Pace,
        clock: Callable[[], float],
        may_act: Callable[[], bool],
    ) -> None:
        """`clock` gives monotonic seconds."""
        self._pods = pods
        self._channels = channels
        self._books = books
        self._queues = queues
        self._brake = brake
        self._pace = pace
        self._clock = clock
        self._may_act = may_act
        self._met: dict[str, object] = {}
        self._was_current = False

    async def run(self) -> None:
        """Look and measure."""
        while True:
            await asyncio.sleep(self._pace.sweep)
            is_current = self._may_act() and self._pods.is_current
            if is_current:
                self._look(self._clock())
            self._was_current = is_current
            self._measure(self._clock())

    def _look(self, now: float) -> None:
        if not self._was_current:
            for queue in self._queues.values():
                queue.hasten_all(_SPREAD_SECONDS)
        for node in self._channels.nodes():
            self._look_at(node, now)
        for book in list(self._books):
            is_known = self._channels.is_known(book.node)
            book.forget(now - self._pace.remember, float("-inf") if is_known else now - self._pace.remember_unknown)
            if not is_known:
                self._met.pop(book.node, None)
                if not book.departures:
                    self._books.drop(book.node)

    def _look_at(self, node: str, now: float) -> None:
        """Have an agent told that is connected anew, has something due, or was not told for long."""
        channel = self._channels.channel(node)
        if channel is None:
            return
        book = self._books.find(node)
        if self._met.get(node) is not channel:
            self._met[node] = channel
            self._queues["syncs"].hasten(node)
            self._queues["decisions"].hasten(node)
            for uid in book.open if book is not None else ():
                self._queues["retains"].hasten(f"{node} {uid}")
        spread = zlib.crc32(node.encode()) % 100 / 100 * self._pace.resync_spread
        told_at = float("-inf") if book is None or book.due or book.channel is not channel else book.synced_at
        if now - told_at > self._pace.resync + spread:
            self._queues["syncs"].add(node)

    def _measure(self, now: float) -> None:
        for name, queue in self._queues.items():
            QUEUE_DEPTH.labels(name).set(len(queue))
        undone = [since for book in self._books for since in book.undone.values()]
        UNDONE.set(len(undone))
        OLDEST_UNDONE.set(now - min(undone, default=now))
        BRAKED.set(self._brake.waiting)
