"""A purge of one huge, fragmented image: the answer, the longest system call, and the event loop meanwhile.

`python -m benchmarks.snapshots_large_purge STORE ROOT NAME` is our side: a store in a process with an event loop, as
the agent is one, with a clock around every call that gives space back.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from agent.snapshots.stores.contract import LedgerIdentity
from agent.snapshots.stores.directory import DirectoryStore
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, percentile, take_turns
from benchmarks.processes import BenchmarkError, output_of, python
from benchmarks.snapshot_calls import disk_directory
from benchmarks.snapshot_files import write_fragmented_snapshot

NAME = "snapshot-large-purge"
P = ParamSpec("P")
R = TypeVar("R")
_VM = "vk-bench-large"
_SECONDS = 300
_LAG_PERIOD_SECONDS = 0.002


def run(scale: Scale) -> list[Row]:
    """Return the rows for the purge of a 16 GiB image with 60,000 extents (2 GiB and 7,500 when quick)."""
    size, extents = scale.pick(16 << 30, 2 << 30), scale.pick(60_000, 7_500)
    with disk_directory() as directory:
        store = directory / "snapshots"
        store.mkdir()

        results: list[dict[str, object]] = []

        def ours() -> float:
            write_fragmented_snapshot(store, _VM, size, extents)
            os.sync()
            arguments = (str(store), str(directory), _VM)
            results.append(output_of(python("-m", "benchmarks.snapshots_large_purge", *arguments), _SECONDS))
            return float(str(results[-1]["answer_ms"]))

        answers, unlinks = take_turns(scale.rounds, ours, lambda: _unlink_ms(directory / "peer", size, extents))
    calls, lags, totals = (
        [float(str(result[key])) for result in results] for key in ("longest_ms", "lag_p99_ms", "total_ms")
    )
    what = f"purge of a {size >> 30} GiB image in {extents} pieces: "
    took = f"space back after {statistics.median(totals):.0f} ms"
    return [
        at_most(
            NAME,
            what + "answer",
            "one unlink of it",
            median_ratio(answers, unlinks),
            0.01,
            TIMES,
            compared("ms", answers, unlinks),
        ),
        at_most(NAME, what + "longest single call", "", statistics.median(calls), 100, "ms", took),
        at_most(NAME, what + "event-loop lag p99 meanwhile", "", statistics.median(lags), 10, "ms"),
    ]


def _unlink_ms(store: Path, size: int, extents: int) -> float:
    store.mkdir(exist_ok=True)
    image = write_fragmented_snapshot(store, _VM, size, extents)
    os.sync()
    started = time.perf_counter()
    image.unlink()
    took = (time.perf_counter() - started) * 1000
    (image.parent / "snapshot.json").unlink()
    image.parent.rmdir()
    return took


class _Longest:
    """Puts clocks around system calls and remembers the longest one, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, call: Callable[P, R]) -> Callable[P, R]:
        """Return the call with a clock around it."""

        def run(*arguments: P.args, **named: P.kwargs) -> R:
            started = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds = max(self.seconds, time.perf_counter() - started)

        return run


async def _measure_lag(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + _LAG_PERIOD_SECONDS
        await asyncio.sleep(_LAG_PERIOD_SECONDS)
        lags.append(time.perf_counter() - due)


async def _purge(location: str, root: str, name: str) -> dict[str, float]:
    longest = _Longest()
    for call in ("ftruncate", "unlink", "rmdir", "rename"):
        setattr(os, call, longest.timed(getattr(os, call)))
    store = DirectoryStore(location, cocoon_root_dir=root)
    await asyncio.to_thread(store.open, LedgerIdentity(store_id=None, knows_snapshots=False))
    store.resume()
    entry = await asyncio.to_thread(store.verify, name)
    lags: list[float] = []
    meter = asyncio.create_task(_measure_lag(lags))
    longest.seconds = 0.0
    started = time.perf_counter()
    await asyncio.to_thread(store.remove, entry)
    answered = time.perf_counter()
    if not await asyncio.to_thread(store.wait_until_reclaimed, _SECONDS):
        raise BenchmarkError("the space did not come back")
    ended = time.perf_counter()
    meter.cancel()
    await asyncio.gather(meter, return_exceptions=True)
    store.close()
    return {
        "answer_ms": (answered - started) * 1000,
        "total_ms": (ended - started) * 1000,
        "longest_ms": longest.seconds * 1000,
        "lag_p99_ms": percentile(lags, 99) * 1000,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_purge(*sys.argv[1:4]))))
