"""The directory store on a disk as it may be found: links, holes, rubbish, other people's files, broken metadata."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.errors import SnapshotChangedError, SnapshotError, StoreFault, StoreUnavailableError
from agent.snapshots.stores import scan
from agent.snapshots.stores.contract import EntryCondition, Inventory, LedgerIdentity, Store
from agent.snapshots.stores.directory import DirectoryStore
from agent.snapshots.stores.trash import TRASH_DIRECTORY
from tests.agent.snapshots.stores.harness import (
    NEW_LEDGER,
    SMALL_FILES,
    DirectoryHarness,
    envelope,
    tree,
    write_snapshot,
)

Closing = Callable[[Store], Store]


@pytest.fixture
def own(tmp_path: Path) -> DirectoryHarness:
    return DirectoryHarness(tmp_path)


@pytest.fixture
def store(own: DirectoryHarness, closing: Closing) -> DirectoryStore:
    opened = own.make()
    closing(opened)
    opened.open(NEW_LEDGER)
    opened.resume()
    return opened


def conditions(inventory: Inventory) -> dict[str, EntryCondition]:
    return {entry.name: entry.condition for entry in inventory.entries}


@pytest.mark.parametrize(
    ("metadata", "condition", "says"),
    [
        (b"", EntryCondition.INVALID, "empty"),
        (envelope("vk-a-b")[:40], EntryCondition.INVALID, "not JSON"),
        (b"\0" * 4096, EntryCondition.INVALID, "not JSON"),
        (envelope("vk-other-one"), EntryCondition.INVALID, "names another snapshot"),
        (envelope("../../etc/passwd"), EntryCondition.INVALID, "names another snapshot"),
        (envelope("vk-a-b", files={"memory-ranges": 5001}), EntryCondition.INVALID, "5000 of 5001"),
        (envelope("vk-a-b", files={"gone": 1}), EntryCondition.INVALID, "missing"),
        (b'{"version": 2, "config": {}}', EntryCondition.UNREADABLE, "version 2"),
        (b" " * (2 << 20), EntryCondition.UNREADABLE, "larger than"),
        (envelope("vk-a-b", image="x" * 30_000), EntryCondition.READY, ""),
        (envelope(""), EntryCondition.READY, "no name"),
    ],
)
def test_broken_metadata_are_named_and_others_are_unaffected(
    own: DirectoryHarness, store: DirectoryStore, metadata: bytes, condition: EntryCondition, says: str
) -> None:
    """F25."""
    write_snapshot(own.disk, "vk-a-b", metadata=metadata)
    own.add("vk-a-c")
    inventory = store.scan_all()
    assert conditions(inventory) == {"vk-a-b": condition, "vk-a-c": EntryCondition.READY}
    problems = next(entry for entry in inventory.entries if entry.name == "vk-a-b").problems
    assert any(says in problem for problem in problems) or not says


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("what", ["metadata", "directory"])
def test_what_cannot_be_read_is_a_problem_and_no_verdict(
    own: DirectoryHarness, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, code: int, what: str
) -> None:
    """F25: a failing disk does not make snapshots collectable."""
    own.add("vk-a-b")

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(code, os.strerror(code))

    if what == "metadata":
        monkeypatch.setattr(scan, "read_metadata", fail)
    else:
        monkeypatch.setattr("agent.snapshots.stores.directory_scan.read_contents", fail)
    entry = store.verify("vk-a-b")
    assert entry.condition is EntryCondition.UNREADABLE
    assert os.strerror(code) in " ".join(entry.problems)


def test_foreign_things_are_counted_shown_and_never_touched(own: DirectoryHarness, store: DirectoryStore) -> None:
    """F26: ten thousand of them, of every sort."""
    own.add("vk-a-b")
    sorts = 5
    for number in range(2000):
        (own.disk / f"file-{number}").write_bytes(b"")
        (own.disk / f"directory-{number}").mkdir()
        (own.disk / f"link-{number}").symlink_to("/etc")
        os.mkfifo(own.disk / f"pipe-{number}")
        (own.disk / f".hidden-{number}").mkdir()
    before = tree(own.disk)
    inventory = store.scan_all()
    assert conditions(inventory) == {"vk-a-b": EntryCondition.READY}
    assert inventory.foreign.count == 2000 * sorts
    assert 0 < len(inventory.foreign.examples) <= 20
    assert store.changed_since(inventory.mark).gone == frozenset()
    assert tree(own.disk) == before
    store.remove(inventory.entries[0])
    assert store.wait_until_reclaimed(20)
    assert {path for path in tree(own.disk) if not path.startswith(".cocoon-node")} == {
        path for path in before if not path.startswith((".cocoon-node", "vk-a-b"))
    }


@pytest.mark.parametrize("odd", [b"\xff\xfe", b"line\nbreak", "vk-\u0430".encode(), b".pending-\xff", b".pending-a b"])
def test_names_that_cannot_be_told_are_foreign(own: DirectoryHarness, store: DirectoryStore, odd: bytes) -> None:
    """F26."""
    os.mkdir(os.path.join(os.fsencode(own.disk), odd))
    inventory = store.scan_all()
    assert inventory.entries == ()
    assert inventory.foreign.count == 1
    assert inventory.foreign.examples[0].isascii()


@pytest.mark.parametrize("where", ["snapshot", "metadata", "trash", "marker"])
def test_symbolic_links_are_not_followed(
    own: DirectoryHarness, store: DirectoryStore, tmp_path: Path, where: str
) -> None:
    """F26."""
    outside = tmp_path / "outside"
    write_snapshot(tmp_path, "outside", metadata=envelope("vk-a-b"))
    if where == "snapshot":
        (own.disk / "vk-a-b").symlink_to(outside)
        assert store.scan_all().entries == ()
    elif where == "metadata":
        (own.disk / "vk-a-b").mkdir()
        (own.disk / "vk-a-b" / "snapshot.json").symlink_to(outside / "snapshot.json")
        assert store.scan_all().entries == ()
    elif where == "trash":
        own.add("vk-a-c")
        assert store.wait_until_reclaimed(20)
        (own.disk / TRASH_DIRECTORY).rmdir()
        (own.disk / TRASH_DIRECTORY).symlink_to(outside)
        with pytest.raises(StoreUnavailableError):
            store.remove(store.verify("vk-a-c"))
        assert set(os.listdir(own.disk)) >= {"vk-a-c"}
    else:
        own.marker.rename(tmp_path / "marker")
        own.marker.symlink_to(tmp_path / "marker")
        with pytest.raises(StoreUnavailableError) as caught:
            store.scan_all()
        assert caught.value.fault is StoreFault.MARKER_UNREADABLE
    assert set(os.listdir(outside)) == {*SMALL_FILES, "snapshot.json"}


def test_a_snapshot_replaced_by_a_link_is_not_removed(
    own: DirectoryHarness, store: DirectoryStore, tmp_path: Path
) -> None:
    """F26."""
    own.add("vk-a-b")
    entry = store.verify("vk-a-b")
    (own.disk / "vk-a-b").rename(tmp_path / "moved")
    (own.disk / "vk-a-b").symlink_to(tmp_path / "moved")
    with pytest.raises(SnapshotError):
        store.remove(entry)
    assert (own.disk / "vk-a-b").is_symlink()
    assert len(os.listdir(tmp_path / "moved")) == len(SMALL_FILES) + 1


def swap_at_rename(
    own: DirectoryHarness, patch: pytest.MonkeyPatch, tmp_path: Path, then: BaseException | None = None
) -> None:
    """Have another snapshot take the name right before the next rename, and the process perhaps end right after it."""
    rename = os.rename

    def swap_then_rename(source: str, target: str, **directories: int) -> None:
        patch.undo()
        (own.disk / "vk-a-b").rename(tmp_path / "old")
        own.add("vk-a-b", {"memory-ranges": b"new" * 3000})
        rename(source, target, **directories)
        if then is not None:
            raise then

    patch.setattr("agent.snapshots.stores.trash.os.rename", swap_then_rename)


def test_a_snapshot_swapped_in_the_very_moment_of_removal_is_put_back(
    own: DirectoryHarness, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """F32: between the last look and the rename another snapshot takes the name."""
    own.add("vk-a-b")
    entry = store.verify("vk-a-b")
    swap_at_rename(own, monkeypatch, tmp_path)
    with pytest.raises(SnapshotChangedError):
        store.remove(entry)
    assert store.verify("vk-a-b").apparent_bytes > 9000
    assert store.trash_bytes() == 0


def test_a_swapped_snapshot_survives_a_crash_before_it_is_put_back(
    own: DirectoryHarness, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closing: Closing
) -> None:
    """F32: the next start empties the trash, but for what was never to go."""
    own.add("vk-a-b")
    own.add("vk-a-c")
    entry = store.verify("vk-a-b")
    swap_at_rename(own, monkeypatch, tmp_path, then=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.remove(entry)
    assert not (own.disk / "vk-a-b").exists()
    store.remove(store.verify("vk-a-c"))
    store.close()
    again = own.make()
    closing(again)
    again.open(LedgerIdentity(store_id=own.marker.read_text().strip(), knows_snapshots=True))
    again.resume()
    assert again.wait_until_reclaimed(20)
    (found,) = again.scan_all().entries
    assert (found.condition, found.target_name) == (EntryCondition.PENDING, "vk-a-b")
    assert (own.disk / found.name / "memory-ranges").read_bytes() == b"new" * 3000
    assert list((own.disk / TRASH_DIRECTORY).iterdir()) == []


def unpack_over(path: Path) -> None:
    """Write the metadata in place."""
    path.write_bytes(path.read_bytes())


def unpack_anew(path: Path) -> None:
    """Write the metadata as `tar` does: what is there goes first, often leaving its inode to the new file."""
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("unpack", [unpack_over, unpack_anew])
def test_an_export_unpacked_again_is_another_thing(
    own: DirectoryHarness, store: DirectoryStore, unpack: Callable[[Path], None]
) -> None:
    """F32: the same id, size and modification time, and a copy that somebody has just put there to restore it."""
    own.add("vk-a-b")
    metadata = own.disk / "vk-a-b" / "snapshot.json"
    os.utime(metadata, (1, 1))
    entry = store.verify("vk-a-b")
    unpack(metadata)
    os.utime(metadata, (1, 1))
    assert store.verify("vk-a-b").version != entry.version
    with pytest.raises(SnapshotChangedError):
        store.remove(entry)
    assert metadata.exists()


def test_hard_links_count_only_with_their_last_link(
    own: DirectoryHarness, store: DirectoryStore, tmp_path: Path
) -> None:
    own.add("vk-a-b", {"memory-ranges": b"m" * 100_000})
    os.link(own.disk / "vk-a-b" / "memory-ranges", tmp_path / "elsewhere")
    os.link(own.disk / "vk-a-b" / "memory-ranges", own.disk / "vk-a-b" / "again")
    entry = store.verify("vk-a-b")
    (link,) = entry.linked_files
    assert (link.link_count, link.links_here) == (3, 2)
    assert entry.allocated_bytes - entry.exclusive_bytes == link.allocated_bytes >= 100_000
    assert entry.apparent_bytes >= 200_000
    store.remove(entry)
    assert store.wait_until_reclaimed(20)
    assert (tmp_path / "elsewhere").read_bytes() == b"m" * 100_000


def test_sizes_are_those_of_allocated_blocks(own: DirectoryHarness, store: DirectoryStore) -> None:
    write_snapshot(own.disk, "vk-a-b", {"cow.raw": b"", "empty": b""}, metadata=envelope("vk-a-b", storage=1 << 40))
    os.truncate(own.disk / "vk-a-b" / "cow.raw", 1 << 40)
    entry = store.verify("vk-a-b")
    assert entry.apparent_bytes > 1 << 40
    assert entry.allocated_bytes < 1 << 20
    assert entry.condition is EntryCondition.READY
    store.remove(entry)
    assert store.wait_until_reclaimed(20)
    assert os.listdir(own.disk / TRASH_DIRECTORY) == []


def test_nested_directories_are_measured_and_removed(own: DirectoryHarness, store: DirectoryStore) -> None:
    own.add("vk-a-b")
    deep = own.disk / "vk-a-b"
    for _ in range(40):
        deep = deep / "d"
        deep.mkdir()
        (deep / "data").write_bytes(b"x" * 5000)
    entry = store.verify("vk-a-b")
    assert entry.apparent_bytes > 40 * 5000
    store.remove(entry)
    assert store.wait_until_reclaimed(20)
    assert os.listdir(own.disk / TRASH_DIRECTORY) == []
    assert store.trash_bytes() == 0


def test_a_pending_entry_tells_which_snapshot_it_will_be(own: DirectoryHarness, store: DirectoryStore) -> None:
    """F23."""
    for directory, content in {
        ".pending-vk-a-b": None,
        ".pending-7f3a": envelope("vk-a-c", "id-c"),
        ".pending-x~y": envelope("../bad"),
        ".pending-": b"{",
    }.items():
        (own.disk / directory).mkdir()
        if content is not None:
            (own.disk / directory / "snapshot.json").write_bytes(content)
    entries = {entry.name: entry for entry in store.scan_all().entries}
    assert {name: entry.target_name for name, entry in entries.items()} == {
        ".pending-vk-a-b": "vk-a-b",
        ".pending-7f3a": "vk-a-c",
        ".pending-x~y": "",
        ".pending-": "",
    }
    assert {entry.condition for entry in entries.values()} == {EntryCondition.PENDING}


def test_a_finished_import_appears_under_its_name(own: DirectoryHarness, store: DirectoryStore) -> None:
    own.add_pending()
    mark = store.scan_all().mark
    (own.disk / ".pending-vk-new-0" / "snapshot.json").write_bytes(envelope("vk-new-0"))
    (own.disk / ".pending-vk-new-0").rename(own.disk / "vk-new-0")
    changes = store.changed_since(mark)
    assert changes.gone == {".pending-vk-new-0"}
    assert changes.changed == {"vk-new-0"}


def test_a_directory_store_beside_the_engines_is_refused(own: DirectoryHarness) -> None:
    (own.cocoon_root / "snapshot" / "localfile").mkdir(parents=True)
    with pytest.raises(StoreUnavailableError, match="COCOON_NODE_STORE") as caught:
        own.make().open(NEW_LEDGER)
    assert caught.value.fault is StoreFault.WRONG_KIND
    assert not own.disk.exists()


def test_a_store_is_created_only_below_an_existing_root(tmp_path: Path) -> None:
    """F5: a missing root is an error, not an empty store on the wrong disk."""
    root = tmp_path / "not-mounted" / "cocoon"
    with pytest.raises(StoreUnavailableError) as caught:
        DirectoryStore(str(root / "snapshots"), cocoon_root_dir=str(root)).open(NEW_LEDGER)
    assert caught.value.fault is StoreFault.MISSING
    assert not (tmp_path / "not-mounted").exists()


def test_a_root_reached_by_a_link_is_the_same_store(
    own: DirectoryHarness, store: DirectoryStore, tmp_path: Path
) -> None:
    """F5."""
    own.add("vk-a-b")
    store_id = own.marker.read_text().strip()
    store.close()
    (tmp_path / "link").symlink_to(own.cocoon_root)
    linked = DirectoryStore(str(tmp_path / "link" / "snapshots"), cocoon_root_dir=str(tmp_path / "link"))
    assert linked.open(NEW_LEDGER).store_id == store_id
    assert conditions(linked.scan_all()) == {"vk-a-b": EntryCondition.READY}
    linked.close()


def test_a_half_written_marker_is_neither_a_marker_nor_foreign(own: DirectoryHarness) -> None:
    own.disk.mkdir()
    (own.disk / f".cocoon-node-store.{'a' * 32}").write_text("aaa")
    store = own.make()
    store.open(NEW_LEDGER)
    assert store.scan_all().foreign.count == 0
    store.close()


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "remove", "touch", "discard", "foreign"]), st.integers(0, 3)), max_size=12
    )
)
def test_following_changes_gives_what_a_full_scan_gives(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    own = DirectoryHarness(tmp_path_factory.mktemp("followed"))
    store = own.make()
    store.open(NEW_LEDGER)
    try:
        inventory = store.scan_all()
        known, mark = {entry.name: entry for entry in inventory.entries}, inventory.mark
        for action, number in steps:
            disturb(own, store, action, f"vk-a-{number}")
            changes = store.changed_since(mark)
            mark = changes.mark
            found = store.rescan(changes.changed | changes.gone)
            known = {name: entry for name, entry in known.items() if name not in found}
            known |= {name: entry for name, entry in found.items() if entry is not None}
            assert known == {entry.name: entry for entry in store.scan_all().entries}
    finally:
        store.close()


def disturb(own: DirectoryHarness, store: DirectoryStore, action: str, name: str) -> None:
    path = own.disk / name
    if action == "add" and not path.exists():
        own.add(name)
    elif action == "foreign" and not path.exists():
        path.mkdir()
    elif action == "touch" and path.exists():
        (path / f"more-{len(os.listdir(path))}").write_bytes(b"x")
    elif action == "discard" and path.exists():
        own.discard(name)
    elif action == "remove" and (entry := store.rescan([name])[name]) is not None:
        store.remove(entry)
