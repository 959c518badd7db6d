"""What every store must do alike: one suite, run against each of them, and against a real engine on request."""

import itertools
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.errors import (
    InvalidNameError,
    SnapshotChangedError,
    SnapshotError,
    SnapshotNotFoundError,
    SnapshotPendingError,
    StoreFault,
    StoreUnavailableError,
)
from agent.snapshots.stores.contract import EntryCondition, LedgerIdentity, Store, StoredSnapshot, StoreOrigin
from tests.agent.snapshots.stores.harness import NEW_LEDGER, DirectoryHarness, EngineHarness, StoreHarness, tree
from tests.support.waiting import wait_for

Closing = Callable[[Store], Store]


@pytest.fixture
def store(harness: StoreHarness, closing: Closing) -> Store:
    opened = closing(harness.make())
    opened.open(NEW_LEDGER)
    opened.resume()
    return opened


def by_name(store: Store) -> dict[str, StoredSnapshot]:
    return {entry.name: entry for entry in store.scan_all().entries}


def test_an_empty_store_is_empty_and_not_broken(store: Store) -> None:
    inventory = store.scan_all()
    assert inventory.entries == ()
    assert inventory.foreign.count == 0
    assert store.in_use_ids() == frozenset()
    assert store.trash_bytes() == 0


def test_a_snapshot_is_listed_with_what_its_metadata_says(harness: StoreHarness, store: Store) -> None:
    harness.add("vk-a-b")
    entry = by_name(store)["vk-a-b"]
    assert entry.condition is EntryCondition.READY
    assert entry.target_name == "vk-a-b"
    assert entry.snapshot_id
    assert (entry.image, entry.hypervisor, entry.cpu_count, entry.memory_bytes) == (
        "img:1",
        "cloud-hypervisor",
        2,
        4096,
    )
    assert entry.apparent_bytes >= 5102
    assert entry.allocated_bytes == entry.exclusive_bytes > 0
    assert entry.problems == ()
    assert entry.created_at > 1_600_000_000 < entry.last_use_at
    assert store.verify("vk-a-b") == entry


def test_changes_since_a_mark_are_exactly_what_changed(harness: StoreHarness, store: Store) -> None:
    for name in ("vk-a-1", "vk-a-2", "base"):
        harness.add(name)
    mark = store.scan_all().mark
    harness.add("vk-a-3")
    harness.discard("vk-a-1")
    changes = store.changed_since(mark)
    assert "vk-a-3" in changes.changed
    assert changes.gone == {"vk-a-1"}
    found = store.rescan([*changes.changed, "vk-a-1"])
    assert found["vk-a-1"] is None
    assert found["vk-a-3"] == by_name(store)["vk-a-3"]


def test_marks_come_to_rest_when_nothing_changes(harness: StoreHarness, store: Store) -> None:
    harness.add("vk-a-b")
    mark = store.scan_all().mark

    def nothing_changed() -> bool:
        nonlocal mark
        changes = store.changed_since(mark)
        mark = changes.mark
        return not changes.changed and not changes.gone

    assert wait_for(nothing_changed, 20, what="a mark that stays")
    harness.add("vk-a-c")
    assert "vk-a-c" in store.changed_since(mark).changed


def test_what_is_being_written_is_pending_and_never_removed(harness: StoreHarness, store: Store) -> None:
    """F23."""
    harness.add("vk-a-b")
    harness.add_pending()
    pending = [entry for entry in store.scan_all().entries if entry.condition is EntryCondition.PENDING]
    assert len(pending) == 1
    before = tree(harness.disk)
    with pytest.raises(SnapshotPendingError):
        store.remove(pending[0])
    assert tree(harness.disk) == before


def test_a_removal_frees_the_name_and_touches_nothing_else(harness: StoreHarness, store: Store) -> None:
    for name in ("vk-a-b", "vk-a-b-c", "fork-vk-a-b"):
        harness.add(name)
    removal = store.remove(by_name(store)["vk-a-b"])
    assert (removal.name, removal.already_gone) == ("vk-a-b", False)
    assert set(by_name(store)) == {"vk-a-b-c", "fork-vk-a-b"}
    assert all(entry.condition is EntryCondition.READY for entry in by_name(store).values())
    assert wait_for(lambda: store.trash_bytes() == 0, 20, what="the space to come back")


def test_a_removal_can_be_repeated(harness: StoreHarness, store: Store) -> None:
    harness.add("vk-a-b")
    entry = by_name(store)["vk-a-b"]
    assert not store.remove(entry).already_gone
    assert store.remove(entry).already_gone


def test_a_removal_that_takes_long_tells_when_nothing_can_keep_it_back(harness: StoreHarness, store: Store) -> None:
    """Not before, and not when there was nothing to remove or another snapshot stands there."""
    harness.add("vk-a-b")
    harness.add("vk-a-c")
    entry, told = store.verify("vk-a-b"), []
    with pytest.raises(SnapshotChangedError):
        store.remove(msgspec.structs.replace(store.verify("vk-a-c"), name="vk-a-b"), lambda: told.append("other"))
    assert not store.remove(entry, lambda: told.append("begun")).already_gone
    assert store.remove(entry, lambda: told.append("again")).already_gone
    assert told == ([] if store.removes_at_once else ["begun"])
    store.wait_for_resumed()


def test_calls_made_in_one_go_are_all_on_the_right_disk_or_none_is(harness: StoreHarness, store: Store) -> None:
    harness.add("vk-a-b")
    with store.held():
        entry = store.rescan(["vk-a-b"])["vk-a-b"]
        assert entry is not None
        assert not store.in_use_ids()
        assert not store.remove(entry).already_gone
    assert store.rescan(["vk-a-b"]) == {"vk-a-b": None}
    harness.marker.rename(harness.marker.with_name(".elsewhere"))
    with pytest.raises(StoreUnavailableError), store.held():
        store.rescan(["vk-a-b"])


def test_a_removal_never_reaches_the_next_snapshot_of_that_name(harness: StoreHarness, store: Store) -> None:
    """F32."""
    harness.add("vk-a-b")
    old = by_name(store)["vk-a-b"]
    store.remove(old)
    harness.add("vk-a-b")
    new = by_name(store)["vk-a-b"]
    assert new.version != old.version
    with pytest.raises(SnapshotChangedError):
        store.remove(old)
    assert by_name(store)["vk-a-b"] == new


def test_data_shorter_than_recorded_are_invalid_and_others_are_not(harness: StoreHarness, store: Store) -> None:
    """F25."""
    harness.add("vk-a-b", {"memory-ranges": b"m" * 100, "cow.raw": b"c"}, memory=512 << 20)
    harness.add("vk-a-c")
    entries = by_name(store)
    assert entries["vk-a-b"].condition is EntryCondition.INVALID
    assert any("memory-ranges" in problem for problem in entries["vk-a-b"].problems)
    assert entries["vk-a-c"].condition is EntryCondition.READY


def test_links_in_a_snapshot_are_not_followed(harness: StoreHarness, store: Store, tmp_path: Path) -> None:
    """F26."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x" * 100_000)
    harness.add("vk-a-b")
    (harness.data_files("vk-a-b")[0].parent / "link").symlink_to(outside)
    entry = store.verify("vk-a-b")
    assert entry.apparent_bytes < 50_000
    assert any("symbolic link" in problem for problem in entry.problems)
    store.remove(entry)
    assert wait_for(lambda: store.trash_bytes() == 0, 20, what="the space to come back")
    assert (outside / "precious").stat().st_size == 100_000


def test_a_name_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(SnapshotNotFoundError):
        store.verify("vk-a-b")
    assert store.rescan(["vk-a-b"]) == {"vk-a-b": None}


@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "-rf", "a/../b", "/etc", "a\0b", "a\nb", "x" * 254, "vk-\u0430-b", "a//b", "a/"]
)
def test_impossible_names_are_refused_before_anything_is_touched(
    harness: StoreHarness, store: Store, name: str
) -> None:
    """F26: one of them has a Cyrillic letter that looks like a Latin one."""
    calls = harness.calls() if isinstance(harness, EngineHarness) else []
    before = tree(harness.disk)
    with pytest.raises(InvalidNameError):
        store.verify(name)
    entry = StoredSnapshot(name, "x", EntryCondition.READY, name, 0, 0, 0)
    with pytest.raises(InvalidNameError):
        store.remove(entry)
    assert tree(harness.disk) == before
    if isinstance(harness, EngineHarness):
        assert harness.calls() == calls


def test_the_store_and_its_ledger_find_each_other_again(harness: StoreHarness) -> None:
    first = harness.make()
    opening = first.open(NEW_LEDGER)
    first.close()
    assert opening.origin is StoreOrigin.FIRST_START
    again = harness.make()
    assert again.open(LedgerIdentity(opening.store_id, knows_snapshots=True)).origin is StoreOrigin.MATCHED
    again.close()
    rebuilt = harness.make()
    found = rebuilt.open(NEW_LEDGER)
    rebuilt.close()
    assert found.origin is StoreOrigin.REBUILT
    assert found.store_id == opening.store_id


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        ("no marker", StoreFault.MARKER_MISSING),
        ("another marker", StoreFault.MARKER_DIFFERENT),
        ("an empty marker", StoreFault.MARKER_UNREADABLE),
        ("an empty mount point", StoreFault.MARKER_MISSING),
    ],
)
def test_another_disk_is_refused_and_left_as_it_is(harness: StoreHarness, damage: str, fault: StoreFault) -> None:
    """F5: at start and while running; no command of the engine, nothing created, nothing removed."""
    store = harness.make()
    opening = store.open(NEW_LEDGER)
    harness.add("vk-a-b")
    entry = by_name(store)["vk-a-b"]
    away = harness.disk.with_name("away")
    if damage == "an empty mount point":
        harness.disk.rename(away)
        harness.marker.parent.mkdir(parents=True)
    elif damage == "no marker":
        harness.marker.unlink()
    else:
        harness.marker.write_text("" if damage == "an empty marker" else "0" * 32)
    calls = harness.calls() if isinstance(harness, EngineHarness) else []
    before = tree(harness.disk)
    mark = None
    attempts: list[Callable[[], object]] = [
        store.check,
        store.scan_all,
        store.in_use_ids,
        store.usage,
        lambda: store.rescan(["vk-a-b"]),
        lambda: store.verify("vk-a-b"),
        lambda: store.remove(entry),
    ]
    for attempt in attempts:
        with pytest.raises(StoreUnavailableError) as caught:
            attempt()
        assert caught.value.fault is fault, mark
    store.close()
    with pytest.raises(StoreUnavailableError) as caught:
        harness.make().open(LedgerIdentity(opening.store_id, knows_snapshots=True))
    assert caught.value.fault is fault
    assert "accept store" in str(caught.value)
    assert tree(harness.disk) == before
    if isinstance(harness, EngineHarness):
        assert harness.calls() == calls


def test_a_disk_that_comes_back_is_used_again(harness: StoreHarness, store: Store) -> None:
    """F5."""
    harness.add("vk-a-b")
    away = harness.disk.with_name("away")
    harness.disk.rename(away)
    with pytest.raises(StoreUnavailableError) as caught:
        store.scan_all()
    assert caught.value.fault is StoreFault.MISSING
    away.rename(harness.disk)
    assert set(by_name(store)) == {"vk-a-b"}


def test_a_missing_disk_is_not_created_by_a_ledger_that_knows_it(harness: StoreHarness) -> None:
    """F5."""
    with pytest.raises(StoreUnavailableError) as caught:
        harness.make().open(LedgerIdentity("0" * 32, knows_snapshots=False))
    assert caught.value.fault in (StoreFault.MISSING, StoreFault.MARKER_MISSING)
    assert not harness.marker.exists()


def test_the_operator_can_accept_the_disk_that_is_there(harness: StoreHarness) -> None:
    harness.marker.parent.mkdir(parents=True, exist_ok=True)
    store_id = harness.make().accept()
    assert harness.make().accept() == store_id
    store = harness.make()
    assert store.open(LedgerIdentity(store_id, knows_snapshots=True)).origin is StoreOrigin.MATCHED
    store.close()


def test_one_process_uses_a_store_and_its_death_frees_it(harness: StoreHarness) -> None:
    first = harness.make()
    opening = first.open(NEW_LEDGER)
    ledger = LedgerIdentity(opening.store_id, knows_snapshots=False)
    with pytest.raises(StoreUnavailableError) as caught:
        harness.make().open(ledger)
    assert caught.value.fault is StoreFault.LOCKED
    first.close()
    script = """
        import fcntl, sys
        lock = open(sys.argv[1])
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(harness.marker)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreUnavailableError) as caught:
            harness.make().open(ledger)
        assert caught.value.fault is StoreFault.LOCKED
        other.kill()
        other.wait()
    store = harness.make()
    store.open(ledger)
    store.close()


def test_a_closed_store_answers_nothing(harness: StoreHarness) -> None:
    store = harness.make()
    store.open(NEW_LEDGER)
    store.close()
    store.close()
    with pytest.raises(StoreUnavailableError) as caught:
        store.scan_all()
    assert caught.value.fault is StoreFault.NOT_OPEN


def test_usage_is_that_of_the_file_system(harness: StoreHarness, store: Store) -> None:
    usage = store.usage()
    assert usage.device == harness.disk.stat().st_dev
    assert 0 < usage.available_bytes <= usage.total_bytes
    assert not usage.read_only


_serial = itertools.count()


@pytest.mark.parametrize("kind", ["directory", "cocoon-old"])
@given(name=st.text(max_size=300))
def test_no_name_reaches_beyond_the_store(tmp_path_factory: pytest.TempPathFactory, kind: str, name: str) -> None:
    """F26: whatever the name, nothing but a typed error, and nothing outside is read or changed."""
    base, harness, store = _fuzzed(tmp_path_factory, kind)
    before = tree(base)
    for attempt in (
        lambda: store.verify(name),
        lambda: store.remove(StoredSnapshot(name, "x", EntryCondition.READY, name, 0, 0, 0, version=1)),
    ):
        try:
            attempt()
        except SnapshotError as error:
            assert error.reason in ("INVALID_NAME", "SNAPSHOT_NOT_FOUND")  # noqa: PT017 (either an error or nothing)
    assert {path: found for path, found in tree(base).items() if "calls" not in path} == {
        path: found for path, found in before.items() if "calls" not in path
    }
    assert harness.marker.exists()


_fuzzed_stores: dict[str, tuple[Path, StoreHarness, Store]] = {}


def _fuzzed(factory: pytest.TempPathFactory, kind: str) -> tuple[Path, StoreHarness, Store]:
    """Return one store for all examples of a kind; its lock ends with the process."""
    if kind not in _fuzzed_stores:
        base = factory.mktemp("fuzzed")
        harness: StoreHarness = DirectoryHarness(base) if kind == "directory" else EngineHarness(base, version="old")
        store = harness.make()
        store.open(NEW_LEDGER)
        store.scan_all()
        (base / "x").mkdir()
        _fuzzed_stores[kind] = base, harness, store
    return _fuzzed_stores[kind]
