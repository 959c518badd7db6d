"""How fast pods get from the API's bytes into our copy, and what one weighs there.

The API server is a stand-in on loopback that replays pods: the real one would be what is measured. The official client
reads fewer pods, because it takes minutes for all of them, and is compared pod by pod.
"""

import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.deletion_replay import event_lines
from benchmarks.harness import TIMES, Row, Scale, at_least, at_most, compared, median_ratio, take_turns
from benchmarks.processes import ROOT, BenchmarkError, environment, python

NAME = "deletion-watch"
_OFFICIAL = "the official client"


@contextmanager
def _replay(pods: int, events: int) -> Iterator[str]:
    server = subprocess.Popen(
        python("-m", "benchmarks.deletion_replay", str(pods), str(events)),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.wait()


def _read(way: str, url: str, events: int) -> dict[str, float]:
    command = python("-m", "benchmarks.deletion_reader", way, url, str(events))
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=900
    )
    if done.returncode:
        raise BenchmarkError(f"reading pods failed ({way}): {done.stderr[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _plain_json(lines: list[bytes]) -> float:
    started = time.monotonic()
    for line in lines:
        json.loads(line)
    return len(lines) / (time.monotonic() - started)


def run(scale: Scale) -> list[Row]:
    """Return the rows for the watch, the first list, and the copy's weight."""
    pods, events = scale.pick(100_000, 10_000), scale.pick(20_000, 5_000)
    fewer = scale.pick(4_000, 1_000)
    lines = event_lines(events)
    with _replay(pods, events) as url, _replay(fewer, fewer) as short_url:
        ours, official, plain = take_turns(
            scale.rounds,
            lambda: _read("ours", url, events),
            lambda: _read("official", short_url, fewer),
            lambda: {"pods_a_second": _plain_json(lines)},
        )
    mine, theirs, bare = ([each["pods_a_second"] for each in runs] for runs in (ours, official, plain))
    listed = [each["synced_seconds"] / each["pods"] * 1e6 for each in ours]
    listed_official = [each["synced_seconds"] / each["pods"] * 1e6 for each in official]
    seconds = statistics.median(each["synced_seconds"] for each in ours)
    what = "watch path, bytes to copy"
    list_detail = f"{compared('µs a pod', listed, listed_official)}; {pods} pods in {seconds:.2f} s"
    return [
        at_least(
            NAME, what, f"{_OFFICIAL}'s watch", median_ratio(mine, theirs), 40, TIMES, compared("/s", mine, theirs)
        ),
        at_least(NAME, what, "json.loads alone", median_ratio(mine, bare), 1.5, TIMES, compared("/s", mine, bare)),
        at_most(
            NAME,
            "all pods from connect to synced",
            _OFFICIAL,
            median_ratio(listed, listed_official),
            1 / 30,
            TIMES,
            list_detail,
        ),
        at_most(
            NAME,
            "copy with its indexes",
            "",
            statistics.median(each["bytes_a_pod"] for each in ours),
            900,
            "bytes a pod",
        ),
    ]
