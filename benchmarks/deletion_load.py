"""What happens to pods on the stand-in API server: a steady stream of events, deletions among them.

Lines of standard input, each answered with one of JSON when it is done:
`load EVENTS KEPT REMOVED SECONDS`: so many events a second, in all; among them the deletion of so many pods a second
whose flag is written in the same breath, and of so many without; for each deleted pod one is added.
`delete COUNT A_SECOND`: nothing but DELETED events of pods that carry the flag, at this spacing.
`count`: what was written since the last `count`, and the longest time between two renewals of a Node's Lease.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Protocol

from benchmarks.deletion_pods import encode, event, node_name, pod, pod_uid

Step = Callable[[], None]


class Cluster(Protocol):
    """What a load changes; the stand-in API server is one."""

    node_count: int
    kept: int
    pods: list[bytes]
    gone: set[int]

    def next_version(self) -> int:
        """Return a resource version that is newer than all."""
        ...

    def tell_pods(self, line: bytes) -> None:
        """Send a line to who watches pods."""
        ...

    def count(self) -> dict[str, object]:
        """Return what was written since the last time."""
        ...


class Load:
    """Obeys one line at a time."""

    def __init__(self, cluster: Cluster) -> None:
        """Nothing happens yet."""
        self._cluster = cluster
        self._next_kept = 0
        self._next_removed = cluster.kept
        self._half = self._churn = len(cluster.pods) // 2
        self._running: asyncio.Task[None] | None = None

    def obey(self, line: str) -> None:
        """Begin what the line says."""
        verb, *numbers = line.split()
        if verb == "count":
            print(json.dumps(self._cluster.count()), flush=True)
            return
        arguments = [int(number) for number in numbers]
        self._running = asyncio.create_task(self._load(*arguments) if verb == "load" else self._delete(*arguments))

    async def _load(self, events: int, kept: int, removed: int, seconds: int) -> None:
        deletions: dict[str, float] = {}
        await _pace(self._mixture(events, kept, removed, deletions), events, events * seconds)
        print(json.dumps({"deletions": deletions}), flush=True)

    async def _delete(self, count: int, a_second: int) -> None:
        deletions: dict[str, float] = {}
        numbers = range(self._next_kept, self._next_kept + count)
        self._next_kept += count
        await _pace((partial(self._deleted, number, deletions, keep=True) for number in numbers), a_second, count)
        print(json.dumps({"deletions": deletions}), flush=True)

    def _mixture(self, events: int, kept: int, removed: int, deletions: dict[str, float]) -> Iterator[Step]:
        """Make one event at each step; the deletions are spread over each second."""
        between = max(0, events - 4 * kept - 3 * removed) // (kept + removed)
        turn = 0
        while True:
            for _ in range(between):
                # Of the upper half; the deleted ones are of the lower.
                self._churn = self._churn + 1 if self._churn + 1 < len(self._cluster.pods) else self._half
                yield partial(self._changed, self._churn)
            turn = (turn + kept) % (kept + removed)
            if turn < kept:
                number = self._next_kept
                self._next_kept += 1
                yield partial(self._changed, number, keep=True)
                yield partial(self._changed, number, keep=True, deleting=True)
                yield partial(self._deleted, number, deletions, keep=True)
            else:
                number = self._next_removed
                self._next_removed += 1
                yield partial(self._changed, number, deleting=True)
                yield partial(self._deleted, number, deletions)
            yield self._added

    def _changed(self, number: int, *, keep: bool = False, deleting: bool = False) -> None:
        cluster = self._cluster
        node = node_name(number, cluster.node_count)
        obj = pod(number, cluster.next_version(), node, keep=keep, deleting=deleting)
        cluster.pods[number] = encode(obj)
        cluster.tell_pods(event("MODIFIED", obj))

    def _deleted(self, number: int, deletions: dict[str, float], *, keep: bool = False) -> None:
        cluster = self._cluster
        cluster.gone.add(number)
        node = node_name(number, cluster.node_count)
        line = event("DELETED", pod(number, cluster.next_version(), node, keep=keep, deleting=True))
        deletions[pod_uid(number)] = time.monotonic()
        cluster.tell_pods(line)

    def _added(self) -> None:
        cluster = self._cluster
        number = len(cluster.pods)
        obj = pod(number, cluster.next_version(), node_name(number, cluster.node_count))
        cluster.pods.append(encode(obj))
        cluster.tell_pods(event("ADDED", obj))


async def _pace(steps: Iterator[Step], a_second: int, count: int) -> None:
    """Take so many steps at even distances; what was late is caught up."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number, step in zip(range(count), steps, strict=False):
        pause = started + number / a_second - loop.time()
        if pause > 0:
            await asyncio.sleep(pause)
        step()


def longest_gap(times: dict[str, list[float]], began_at: float, ended_at: float) -> float:
    """Return the longest time between two renewals; the window's ends count as renewals of those outside."""
    gaps = [0.0]
    for renewals in times.values():
        inside = sorted(at for at in renewals if began_at <= at <= ended_at)
        gaps += [late - early for early, late in pairwise([began_at, *inside, ended_at])]
    return max(gaps)
