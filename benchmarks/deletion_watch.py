"""How fast pods get from the API's bytes into our copy, and what one weighs there.

The watch is fed from memory, the same bytes to all sides, so that only reading is measured. The list comes from a
stand-in API server on loopback: the real one takes minutes to make a hundred thousand pods. The official client reads
fewer, because it takes minutes for all of them, and is compared pod by pod. One run against the real API server, with
as many pods as it makes in half a minute, is reported beside it.
"""

import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.deletion_cluster import stand_in_api, write_kubeconfig
from benchmarks.deletion_pods import LIST_VERSION, event, names, node_name, pod
from benchmarks.deletion_reader import NODES
from benchmarks.harness import TIMES, Row, Scale, at_least, at_most, compared, figure, median_ratio, take_turns
from benchmarks.processes import output_of, python
from devenv.control_plane import ControlPlane, Options

NAME = "deletion-watch"
_OFFICIAL = "the official client"
_SECONDS = 600
_WRITERS = 8


def run(scale: Scale) -> list[Row]:
    """Return the rows for the watch, the first list, and the copy's weight."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        return [*_watch_rows(scale, Path(made)), *_list_rows(scale, Path(made))]


def _watch_rows(scale: Scale, directory: Path) -> list[Row]:
    events, fewer = scale.pick(20_000, 5_000), scale.pick(4_000, 1_000)
    lines, few_lines = (_write_lines(directory / str(count), count) for count in (events, fewer))
    ours, official, plain = take_turns(
        scale.rounds,
        lambda: _read("ours", lines, events, events)["pods_a_second"],
        lambda: _read("official", few_lines, fewer, fewer)["pods_a_second"],
        lambda: _read("json", lines, events, events)["pods_a_second"],
    )
    what = "watch path, bytes to copy"
    size = f"{lines.stat().st_size / events / 1000:.1f} kB an event"
    return [
        at_least(
            NAME,
            what,
            f"{_OFFICIAL}'s watch",
            median_ratio(ours, official),
            40,
            TIMES,
            f"{compared('/s', ours, official)}; {size}",
        ),
        at_least(NAME, what, "json.loads alone", median_ratio(ours, plain), 1.5, TIMES, compared("/s", ours, plain)),
    ]


def _list_rows(scale: Scale, directory: Path) -> list[Row]:
    pods, fewer = scale.pick(100_000, 20_000), scale.pick(4_000, 1_000)
    with stand_in_api(pods, NODES) as api, stand_in_api(fewer, NODES) as small:
        many = write_kubeconfig(directory / "many", api.url)
        few = write_kubeconfig(directory / "few", small.url)
        ours, official = take_turns(
            scale.rounds, lambda: _read("ours", many, pods, 0), lambda: _read("official", few, fewer, 0)
        )
    listed, listed_official = (
        [each["synced_seconds"] / each["pods"] * 1e6 for each in runs] for runs in (ours, official)
    )
    seconds = figure(statistics.median(each["synced_seconds"] for each in ours))
    detail = f"{compared('µs a pod', listed, listed_official)}; {pods} pods in {seconds} s; {_against_real(scale)}"
    weight = statistics.median(each["bytes_a_pod"] for each in ours)
    return [
        at_most(
            NAME,
            "all pods from connect to synced",
            _OFFICIAL,
            median_ratio(listed, listed_official),
            1 / 30,
            TIMES,
            detail,
        ),
        at_most(NAME, "copy with its indexes", "", weight, 900, "bytes a pod"),
    ]


def _against_real(scale: Scale) -> str:
    """Read pods of the real API server once each way, and say what it took."""
    count = scale.pick(4_000, 500)
    with _real_pods(count) as kubeconfig:
        ours, official = (_read(way, kubeconfig, count, 0)["synced_seconds"] for way in ("ours", "official"))
    return f"real API server, {count} pods once: {figure(ours)} s against {figure(official)} s"


@contextmanager
def _real_pods(count: int) -> Iterator[Path]:
    """Run an API server with so many bound pods."""
    options = Options(scheduler=False, controller_manager=False)
    with (
        TemporaryDirectory(prefix="cocoon-benchmark-") as made,
        ControlPlane(Path(made) / "control-plane", options) as plane,
        plane.client() as admin,
        ThreadPoolExecutor(_WRITERS) as writers,
    ):
        for namespace in sorted({names(number)[0] for number in range(count)}):
            admin.create("/api/v1/namespaces", {"metadata": {"name": namespace}})

        def create(number: int) -> None:
            body = pod(number, 1, node_name(number, NODES))
            for made_by_server in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
                del body["metadata"][made_by_server]
            admin.create(f"/api/v1/namespaces/{names(number)[0]}/pods", body)

        list(writers.map(create, range(count)))
        yield plane.kubeconfig("admin")


def _write_lines(path: Path, count: int) -> Path:
    with path.open("wb") as file:
        for number in range(count):
            file.write(event("MODIFIED", pod(number, LIST_VERSION + 1 + number, node_name(number, NODES))))
    return path


def _read(way: str, where: Path, pods: int, events: int) -> dict[str, float]:
    command = python("-m", "benchmarks.deletion_reader", way, str(where), str(pods), str(events))
    return {key: float(str(value)) for key, value in output_of(command, _SECONDS).items()}
