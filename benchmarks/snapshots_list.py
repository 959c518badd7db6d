"""What a list costs: all pages against a walk of the disk, one page as the store grows, memory for each snapshot."""

import itertools
import statistics
import time
import uuid
from contextlib import closing
from pathlib import Path

from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import LedgerChange, SnapshotKey
from agent.snapshots.model import Retention, SnapshotFacts
from benchmarks.agent_process import Served, agent
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, figure, median_ratio, take_turns
from benchmarks.processes import BenchmarkError
from benchmarks.snapshot_calls import disk_directory, pages
from benchmarks.snapshot_files import disk_usage, snapshot_name, write_snapshots
from common.snapshot_words import Owner, RetainReason

NAME = "snapshot-list"
_LARGEST_PAGE = 1000
_IDLE_SECONDS = 5.0
_FRESH_LISTS, _FRESH_PAGES = 5, 8
_page_sizes = itertools.count(95)


def run(scale: Scale) -> list[Row]:
    """Return the rows for listing everything, for one page, and for the memory."""
    return [*_all_pages(scale), *_growth(scale)]


def _all_pages(scale: Scale) -> list[Row]:
    count = scale.pick(10_000, 2_000)
    with disk_directory() as directory:
        store = _store(directory, count)
        with agent(directory=directory) as server:
            _wait_known(server, count)
            first_ms = _list_ms(server, count, times=1)
            listed, walked = take_turns(2 * scale.rounds, lambda: _list_ms(server, count), lambda: _du_ms(store))
    what = f"ListSnapshots, all {count} in pages of {_LARGEST_PAGE}"
    detail = f"{compared('ms', listed, walked)}; the first one {figure(first_ms)} ms"
    return [at_most(NAME, what, "du -s of the store", median_ratio(listed, walked), 0.10, TIMES, detail)]


def _growth(scale: Scale) -> list[Row]:
    few, many = scale.pick(1_000, 500), scale.pick(100_000, 5_000)
    with disk_directory() as small, disk_directory() as large:
        _store(small, few, small=True)
        _store(large, many, small=True)
        with agent(directory=small) as of_few, agent(directory=large) as of_many:
            _wait_known(of_few, few)
            _wait_known(of_many, many)
            time.sleep(_IDLE_SECONDS)
            plain = (of_many.child.rss_bytes() - of_few.child.rss_bytes()) / (many - few)
            grown, first = take_turns(scale.rounds, lambda: _page_us(of_many), lambda: _page_us(of_few))
        for directory, count in ((small, few), (large, many)):
            _give_owners(directory, count)
        with agent(directory=small) as of_few, agent(directory=large) as of_many:
            _wait_known(of_few, few)
            _wait_known(of_many, many)
            time.sleep(_IDLE_SECONDS)
            kept = (of_many.child.rss_bytes() - of_few.child.rss_bytes()) / (many - few)
    return [
        at_most(
            NAME,
            f"a page of 100 at {many} snapshots",
            f"the same at {few}",
            median_ratio(grown, first),
            1.5,
            TIMES,
            compared("µs", grown, first),
        ),
        *(
            at_most(
                NAME,
                f"memory for each snapshot known{whose}",
                "",
                per_snapshot / 1024,
                1,
                "KiB",
                f"resident memory of an agent with {many} less that of one with {few}, divided",
            )
            for whose, per_snapshot in (("", plain), (", with an owner and a promise of its own", kept))
        ),
    ]


def _give_owners(directory: Path, count: int) -> None:
    """Write into a stopped agent's ledger that every snapshot was a pod's and is kept for it."""
    facts: dict[SnapshotKey, SnapshotFacts | None] = {}
    for index in range(count):
        name = snapshot_name(index)
        owner = Owner(
            pod_uid=str(uuid.UUID(int=index)),
            namespace="bench",
            pod_name=name.removeprefix("vk-bench-"),
            vm_name=name,
            managed=True,
            set_name="vm",
            set_uid=str(uuid.UUID(int=0)),
            vm_id=f"{index:032x}",
            ephemeral_storage_request_bytes=10 << 30,
        )
        kept = Retention(owner, RetainReason.SEAT_RELEASE, time.time())
        facts[(name, f"{index:032x}")] = SnapshotFacts(owner=owner, retentions=(kept,), last_used_at=time.time())
    with closing(Ledger(str(directory / "state"))) as ledger:
        ledger.open()
        ledger.commit(LedgerChange(facts=facts))


def _store(directory: Path, count: int, *, small: bool = False) -> Path:
    store = directory / "root" / "snapshots"
    write_snapshots(store, count, small=small)
    return store


def _wait_known(server: Served, count: int) -> None:
    """Return when the agent knows all snapshots."""
    deadline = time.monotonic() + 120
    while (known := pages(server.address, _LARGEST_PAGE - 1, 1)["snapshots"]) != count:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the agent lists {known} of {count} snapshots")
        time.sleep(0.2)


def _list_ms(server: Served, count: int, times: int = 5) -> float:
    answer = pages(server.address, _LARGEST_PAGE, times)
    if answer["snapshots"] != count:
        raise BenchmarkError(f"{answer['snapshots']} snapshots listed instead of {count}")
    return statistics.median(_numbers(answer["listings_us"])) / 1000


def _page_us(server: Served) -> float:
    """Return the median time of a page of about 100 snapshots that was not asked for before.

    Every request has a size of its own, because an agent may keep the pages it has sent.
    """
    took: list[float] = []
    for _ in range(_FRESH_LISTS):
        took += _numbers(pages(server.address, next(_page_sizes), 1, _FRESH_PAGES)["pages_us"])
    return statistics.median(took)


def _numbers(value: object) -> list[float]:
    assert isinstance(value, list)
    return value


def _du_ms(store: Path) -> float:
    started = time.perf_counter()
    disk_usage(store)
    return (time.perf_counter() - started) * 1000
