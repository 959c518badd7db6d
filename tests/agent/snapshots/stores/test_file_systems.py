"""The directory store on file systems that really are full, read-only, elsewhere or gone."""

import errno
import itertools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.snapshots.errors import SnapshotChangedError, StoreFault, StoreUnavailableError
from agent.snapshots.stores.ballast import Ballast
from agent.snapshots.stores.contract import EntryCondition, LedgerIdentity, Store, StoreOrigin
from agent.snapshots.stores.directory import DirectoryStore
from agent.snapshots.stores.removal_record import RemovalRecord, RunningRemoval
from agent.snapshots.stores.trash import TRASH_DIRECTORY
from tests.agent.snapshots.stores.harness import NEW_LEDGER, DirectoryHarness, tree, write_snapshot

Closing = Callable[[Store], Store]
Mount = Callable[..., Path]

MIB = 1 << 20


@pytest.fixture(params=["tmpfs", "ext4"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path, mount: Mount) -> DirectoryHarness:
    """A store whose root is a small file system of its own."""
    own = DirectoryHarness(tmp_path)
    mount(own.disk, size_bytes=8 * MIB, kind=request.param)
    return own


@pytest.fixture
def on_tmpfs(tmp_path: Path, mount: Mount) -> DirectoryHarness:
    own = DirectoryHarness(tmp_path)
    mount(own.disk, size_bytes=8 * MIB)
    return own


def opened(own: DirectoryHarness, closing: Closing) -> DirectoryStore:
    store = own.make()
    closing(store)
    store.open(NEW_LEDGER)
    store.resume()
    return store


def fill(directory: Path) -> None:
    """Write until not a byte is free."""
    until_full(lambda: append(directory / "filler"))


def append(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(b"f" * 4096)


def until_full(write: Callable[[], None]) -> None:
    """Repeat until the file system takes no more."""
    while True:
        try:
            write()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


def test_a_removal_works_with_no_byte_free(mounted: DirectoryHarness, closing: Closing) -> None:
    """F24."""
    store = opened(mounted, closing)
    mounted.add("vk-a-b", {"memory-ranges": b"m" * MIB})
    mounted.add("vk-a-c")
    fill(mounted.disk)
    assert store.usage().available_bytes == 0
    assert not store.remove(store.verify("vk-a-b")).already_gone
    assert store.wait_until_reclaimed(20)
    assert store.usage().available_bytes >= MIB // 2
    assert {entry.name for entry in store.scan_all().entries} == {"vk-a-c"}


def test_a_removal_works_with_no_inode_free(tmp_path: Path, mount: Mount, closing: Closing) -> None:
    """F24."""
    own = DirectoryHarness(tmp_path)
    mount(own.disk, size_bytes=8 * MIB, kind="ext4")
    store = opened(own, closing)
    own.add("vk-a-b")
    numbers = itertools.count()

    def touch_another() -> None:
        (own.disk / f"filler-{next(numbers)}").touch()

    until_full(touch_another)
    assert store.usage().available_inodes == 0
    store.remove(store.verify("vk-a-b"))
    assert store.wait_until_reclaimed(20)
    assert store.usage().available_inodes > 0


def test_a_first_start_on_a_full_disk_says_so(on_tmpfs: DirectoryHarness) -> None:
    """F24: no half marker is left behind."""
    fill(on_tmpfs.disk)
    with pytest.raises(StoreUnavailableError) as caught:
        on_tmpfs.make().open(NEW_LEDGER)
    assert caught.value.fault is StoreFault.FULL
    assert os.listdir(on_tmpfs.disk) == ["filler"]


def test_a_read_only_store_is_listed_and_refuses_removal(mounted: DirectoryHarness, closing: Closing) -> None:
    store = opened(mounted, closing)
    mounted.add("vk-a-b")
    subprocess.run(["mount", "-o", "remount,ro", mounted.disk], check=True)
    try:
        entry = store.verify("vk-a-b")
        assert entry.condition is EntryCondition.READY
        assert store.usage().read_only
        with pytest.raises(StoreUnavailableError) as caught:
            store.remove(entry)
        assert caught.value.fault is StoreFault.READ_ONLY
        assert store.verify("vk-a-b") == entry
    finally:
        subprocess.run(["mount", "-o", "remount,rw", mounted.disk], check=True)
    assert not store.remove(entry).already_gone


def test_a_trash_on_another_file_system_is_found_before_anything_moves(
    on_tmpfs: DirectoryHarness, mount: Mount, closing: Closing
) -> None:
    store = on_tmpfs.make()
    closing(store)
    store.open(NEW_LEDGER)
    on_tmpfs.add("vk-a-b")
    mount(on_tmpfs.disk / TRASH_DIRECTORY)
    entry = store.verify("vk-a-b")
    with pytest.raises(StoreUnavailableError) as caught:
        store.remove(entry)
    assert caught.value.fault is StoreFault.TRASH_ON_OTHER_FILE_SYSTEM
    assert store.verify("vk-a-b") == entry


def test_a_snapshot_that_is_a_mount_point_is_somebody_elses(
    on_tmpfs: DirectoryHarness, mount: Mount, closing: Closing
) -> None:
    store = opened(on_tmpfs, closing)
    on_tmpfs.add("vk-a-b")
    entry = store.verify("vk-a-b")
    mount(on_tmpfs.disk / "vk-a-b")
    write_snapshot(on_tmpfs.disk / "vk-a-b", "inner")
    assert store.rescan(["vk-a-b"]) == {"vk-a-b": None}
    assert store.scan_all().foreign.count == 1
    with pytest.raises(SnapshotChangedError):
        store.remove(entry)
    assert (on_tmpfs.disk / "vk-a-b" / "inner" / "snapshot.json").exists()


def test_a_file_system_mounted_inside_a_snapshot_survives_its_removal(
    on_tmpfs: DirectoryHarness, closing: Closing
) -> None:
    store = opened(on_tmpfs, closing)
    on_tmpfs.add("vk-a-b")
    inside = on_tmpfs.disk / "vk-a-b" / "mounted"
    inside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", inside], check=True)
    (inside / "precious").write_bytes(b"p")
    entry = store.verify("vk-a-b")
    assert entry.condition is EntryCondition.UNREADABLE
    store.remove(entry)
    store.wait_until_reclaimed(1)
    (left,) = (on_tmpfs.disk / TRASH_DIRECTORY).rglob("precious")
    assert left.read_bytes() == b"p"
    subprocess.run(["umount", left.parent], check=True)


def test_an_unmounted_store_is_unavailable_and_nothing_is_made_below(tmp_path: Path, mount: Mount) -> None:
    """F5: the mount gone while running, then at start; after it is back everything is as before."""
    own = DirectoryHarness(tmp_path)
    mount(own.disk, size_bytes=8 * MIB, kind="ext4")
    store = own.make()
    opening = store.open(NEW_LEDGER)
    own.add("vk-a-b")
    entry = store.verify("vk-a-b")
    image = own.disk.with_suffix(".img")
    subprocess.run(["umount", "--lazy", own.disk], check=True)
    try:
        for attempt in (store.check, store.scan_all, store.usage, lambda: store.remove(entry)):
            with pytest.raises(StoreUnavailableError) as caught:
                attempt()
            assert caught.value.fault is StoreFault.MARKER_MISSING
        store.close()
        ledger = LedgerIdentity(opening.store_id, knows_snapshots=True)
        with pytest.raises(StoreUnavailableError):
            own.make().open(ledger)
        assert tree(own.disk) == {}
    finally:
        subprocess.run(["mount", "-o", "loop", image, own.disk], check=True)
    again = own.make()
    assert again.open(ledger).origin is StoreOrigin.MATCHED
    assert again.verify("vk-a-b") == entry
    again.close()


def test_the_lock_is_taken_again_when_the_disk_is_mounted_again(tmp_path: Path, mount: Mount) -> None:
    """F5: the lock of an unmounted file system protects nothing."""
    own = DirectoryHarness(tmp_path)
    mount(own.disk)
    store = own.make()
    opening = store.open(NEW_LEDGER)
    mount(own.disk)
    own.marker.write_text(opening.store_id + "\n")
    store.check()
    with pytest.raises(StoreUnavailableError) as caught:
        own.make().open(LedgerIdentity(opening.store_id, knows_snapshots=False))
    assert caught.value.fault is StoreFault.LOCKED
    store.close()


def test_bind_mounted_data_are_not_shortened(on_tmpfs: DirectoryHarness, closing: Closing) -> None:
    """A file can be a mount point of its own; what is mounted there is somebody else's."""
    store = opened(on_tmpfs, closing)
    on_tmpfs.add("vk-a-b")
    precious = on_tmpfs.disk.parent / "precious"
    precious.write_bytes(b"p" * MIB)
    target = on_tmpfs.disk / "vk-a-b" / "cow.raw"
    subprocess.run(["mount", "--bind", precious, target], check=True)
    store.remove(store.verify("vk-a-b"))
    store.wait_until_reclaimed(1)
    assert precious.stat().st_size == MIB
    (left,) = (on_tmpfs.disk / TRASH_DIRECTORY).rglob("cow.raw")
    subprocess.run(["umount", left], check=True)


def test_the_ballast_gives_back_real_space(tmp_path: Path, mount: Mount) -> None:
    """F24."""
    disk = mount(tmp_path / "state", size_bytes=2 * MIB)
    ballast = Ballast(str(disk / "ballast"), size_bytes=MIB)
    assert ballast.ensure()
    assert ballast.ensure()
    fill(disk)
    assert ballast.give_up()
    assert not ballast.give_up()
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize >= MIB // 2
    (disk / "more").write_bytes(b"m" * MIB)
    assert not ballast.ensure()
    assert not (disk / "ballast").exists()


def test_the_record_of_a_removal_can_be_written_with_no_byte_free(tmp_path: Path, mount: Mount) -> None:
    """F24."""
    disk = mount(tmp_path / "state", size_bytes=MIB, kind="ext4")
    record = RemovalRecord(str(disk / "record"))
    record.prepare()
    fill(disk)
    removal = RunningRemoval("I" * 26, fingerprint=-5, pid=7)
    with record.locked() as descriptor:
        record.write(descriptor, [removal])
        assert record.unfinished() == (removal,)
        record.write(descriptor, [])
    assert record.unfinished() == ()
    with pytest.raises(OSError, match="No space left"):
        (disk / "another").write_bytes(b"x" * 4096)
