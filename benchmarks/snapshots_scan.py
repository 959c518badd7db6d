"""What it costs to know the store: the first full scan, and a look with nothing changed.

`python -m benchmarks.snapshots_scan STORE ROOT` is our side: it opens the store, says so, and does what each line of
its standard input asks (`full`, `again`), answering with the milliseconds it took.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

from agent.snapshots.stores.contract import Inventory, LedgerIdentity
from agent.snapshots.stores.directory import DirectoryStore
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import BenchmarkError, Child, python
from benchmarks.snapshot_calls import disk_directory
from benchmarks.snapshot_files import disk_usage, write_snapshots

NAME = "snapshot-scan"
_SECONDS = 120


def run(scale: Scale) -> list[Row]:
    """Return the rows for both scans of 10,000 snapshots against `du -s` of the same store."""
    count = scale.pick(10_000, 2_000)
    with disk_directory() as root:
        store = root / "snapshots"
        write_snapshots(store, count)
        os.sync()
        with Child(python("-m", "benchmarks.snapshots_scan", str(store), str(root))) as worker:
            worker.read_json(_SECONDS)
            full = take_turns(scale.rounds, lambda: _ask(worker, "full", count), lambda: _du_ms(store))
            again = take_turns(2 * scale.rounds, lambda: _ask(worker, "again", 0), lambda: _du_ms(store))
    what = f"{count} snapshots of 4 files: "
    against = "du -s of the store"
    return [
        at_most(
            NAME,
            what + "rescan with nothing changed",
            against,
            median_ratio(*again),
            0.30,
            TIMES,
            compared("ms", *again),
        ),
        at_most(
            NAME,
            what + "first full scan with metadata",
            against,
            median_ratio(*full),
            2.5,
            TIMES,
            compared("ms", *full),
        ),
    ]


def _ask(worker: Child, command: str, expected: int) -> float:
    worker.tell(command)
    answer = worker.read_json(_SECONDS)
    if answer["entries"] != expected:
        raise BenchmarkError(f"{command}: {answer['entries']} entries instead of {expected}")
    return float(str(answer["ms"]))


def _du_ms(store: Path) -> float:
    started = time.perf_counter()
    disk_usage(store)
    return (time.perf_counter() - started) * 1000


def main() -> None:
    """Serve the commands of standard input on a store."""
    store = DirectoryStore(sys.argv[1], cocoon_root_dir=sys.argv[2])
    store.open(LedgerIdentity(store_id=None, knows_snapshots=False))
    inventory: Inventory | None = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if line.strip() == "full" or inventory is None:
            inventory = None
            gc.collect()
            started = time.perf_counter()
            inventory = store.scan_all()
            answer = len(inventory.entries)
        else:
            started = time.perf_counter()
            answer = len(store.changed_since(inventory.mark).changed)
        print(json.dumps({"ms": (time.perf_counter() - started) * 1000, "entries": answer}), flush=True)
    store.close()


if __name__ == "__main__":
    main()
