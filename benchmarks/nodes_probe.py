"""One full probe of the host (CPU, memory, all huge page sizes, storage) against the same reads in a small Go program.

`python -m benchmarks.nodes_probe COUNT ROOT` is our side, in a process of its own as the peer is.
"""

import json
import sys
import time

from agent.resources.host import HostProbe
from benchmarks import go_programs
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import BenchmarkError, output_of, python

NAME = "probe"
_ROOT = "/"
_SECONDS = 120


def run(scale: Scale) -> list[Row]:
    """Return the row for the time of one probe; both sides must have read the same."""
    count = scale.pick(20_000, 3_000)
    program = str(go_programs.build("probe"))
    mine, theirs = take_turns(
        scale.rounds,
        lambda: output_of(python("-m", "benchmarks.nodes_probe", str(count), _ROOT), _SECONDS),
        lambda: output_of([program, f"-count={count}", f"-root={_ROOT}"], _SECONDS),
    )
    _check_equal(mine[-1]["reading"], theirs[-1]["reading"])
    ours, peers = ([float(str(result["ns_per_probe"])) / 1000 for result in side] for side in (mine, theirs))
    return [
        at_most(
            NAME,
            "one full probe: CPU, memory, all huge page sizes, statvfs",
            "the same reads in Go",
            median_ratio(ours, peers),
            0.75,
            TIMES,
            compared("µs", ours, peers),
        )
    ]


def _check_equal(ours: object, peers: object) -> None:
    """Raise when the two sides did not read the same host; free space may have moved in between."""
    assert isinstance(ours, dict)
    assert isinstance(peers, dict)
    if ours != {key: value for key, value in peers.items() if key in ours}:
        raise BenchmarkError(f"the two probes do not agree: {ours} against {peers}")


def _probe(host: HostProbe) -> tuple[int, int, dict[int, int], int]:
    cpu = host.read_cpu_millicores()
    memory = host.read_memory()
    pages = host.read_hugepages(memory)
    storage = host.read_storage()
    return cpu, memory.total_bytes, pages, storage.total_bytes


def main() -> None:
    """Probe as often as the first argument says and print the time of one."""
    count, root = int(sys.argv[1]), sys.argv[2]
    host = HostProbe("/proc", "/sys", root)
    cpu, memory, pages, storage = _probe(host)
    started = time.perf_counter_ns()
    for _ in range(count):
        _probe(host)
    elapsed = time.perf_counter_ns() - started
    reading = {
        "cpus": cpu // 1000,
        "memory_bytes": memory,
        "hugepage_bytes": {f"{size // 1024}kB": total for size, total in pages.items()},
        "storage_bytes": storage,
    }
    print(json.dumps({"ns_per_probe": elapsed // count, "reading": reading}))


if __name__ == "__main__":
    main()
