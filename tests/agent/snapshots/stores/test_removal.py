"""How the directory store gives space back: durable first, in steps, never at anybody's expense, through any crash."""

import ctypes
import mmap
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.snapshots.errors import StoreUnavailableError
from agent.snapshots.stores import shrink
from agent.snapshots.stores.contract import EntryCondition, LedgerIdentity, Store, StoredSnapshot
from agent.snapshots.stores.reclaim import Reclaimer
from agent.snapshots.stores.trash import TRASH_DIRECTORY
from tests.agent.snapshots.stores.harness import NEW_LEDGER, DirectoryHarness
from tests.support.waiting import wait_for

MIB = 1 << 20
# What the kernel calls them; glibc has no function for either.
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE = 1, 3
Closing = Callable[[Store], Store]


@pytest.fixture
def own(tmp_path: Path) -> DirectoryHarness:
    return DirectoryHarness(tmp_path)


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def io_priority_class(thread_id: int) -> int:
    """Return the I/O class of a thread as the kernel has it; 0 while none was set."""
    number = IOPRIO_GET[platform.machine()]
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, IOPRIO_WHO_PROCESS, thread_id)) >> 13


class Steps:
    """Counts the steps of a removal and what came back with each; `stop_after` ends it early."""

    def __init__(self, stop_after: int = 1 << 30) -> None:
        self.freed: list[int] = []
        self._stop_after = stop_after

    def __call__(self, freed_bytes: int) -> bool:
        self.freed.append(freed_bytes)
        return len(self.freed) < self._stop_after


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "STEP_BYTES", MIB)


@pytest.mark.usefixtures("small_steps")
def test_a_large_file_goes_in_steps(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"x" * (5 * MIB))
    steps = Steps()
    with opened_directory(tmp_path) as directory:
        assert shrink.remove_file(directory, "image", step_done=steps)
    assert not (tmp_path / "image").exists()
    assert len(steps.freed) >= 5
    assert sum(steps.freed) >= 5 * MIB
    assert max(steps.freed) <= MIB + 64 * 1024


@pytest.mark.usefixtures("small_steps")
def test_a_removal_that_is_stopped_leaves_a_shorter_file(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"x" * (5 * MIB))
    with opened_directory(tmp_path) as directory:
        assert not shrink.remove_file(directory, "image", step_done=Steps(stop_after=2))
        assert (tmp_path / "image").stat().st_size == 3 * MIB
        assert shrink.remove_file(directory, "image", step_done=Steps())


@pytest.mark.usefixtures("small_steps")
def test_holes_take_few_steps(tmp_path: Path) -> None:
    with (tmp_path / "image").open("wb") as file:
        for offset in (0, 1 << 38, 1 << 42):
            file.seek(offset)
            file.write(b"x" * (3 * MIB // 2))
    steps = Steps()
    with opened_directory(tmp_path) as directory:
        assert shrink.remove_file(directory, "image", step_done=steps)
    assert len(steps.freed) < 50
    assert not (tmp_path / "image").exists()


READER = """
    import mmap, sys
    file = open(sys.argv[1], "rb")
    if sys.argv[2] == "mapped":
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        file.close()
    else:
        content = file
    print("ready", flush=True)
    sys.stdin.readline()
    print(content.seek(0) or len(content.read()), flush=True)
"""


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_file_that_another_process_reads_stays_whole_for_it(tmp_path: Path, how: str) -> None:
    """A VM may still run on a memory image it has mapped: shortening that would kill it, unlinking does not."""
    (tmp_path / "image").write_bytes(b"x" * (4 * MIB))
    command = [sys.executable, "-c", textwrap.dedent(READER), str(tmp_path / "image"), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        with opened_directory(tmp_path) as directory:
            assert shrink.remove_file(directory, "image", step_done=Steps())
        assert not (tmp_path / "image").exists()
        output, _ = reader.communicate("go\n", timeout=30)
        assert output == f"{4 * MIB}\n"
        assert reader.returncode == 0


@pytest.mark.usefixtures("small_steps")
def test_a_hard_linked_file_stays_whole_under_its_other_name(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(b"x" * (4 * MIB))
    os.link(tmp_path / "image", tmp_path / "other")
    with opened_directory(tmp_path) as directory:
        assert shrink.remove_file(directory, "image", step_done=Steps())
    assert (tmp_path / "other").stat().st_size == 4 * MIB


@pytest.mark.usefixtures("small_steps")
def test_a_link_goes_and_its_target_stays(tmp_path: Path) -> None:
    """F26."""
    (tmp_path / "target").write_bytes(b"x" * (4 * MIB))
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    with opened_directory(tmp_path) as directory:
        assert shrink.remove_file(directory, "link", step_done=Steps())
        assert shrink.remove_file(directory, "pipe", step_done=Steps())
    assert os.listdir(tmp_path) == ["target"]
    assert (tmp_path / "target").stat().st_size == 4 * MIB


def test_whether_a_file_is_exclusively_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 4096)
    descriptor = os.open(tmp_path / "file", os.O_WRONLY)
    try:
        assert shrink.is_exclusively_ours(descriptor)
        with (tmp_path / "file").open("rb") as other:
            assert not shrink.is_exclusively_ours(descriptor)
            mapped = mmap.mmap(other.fileno(), 0, prot=mmap.PROT_READ)
        assert not shrink.is_exclusively_ours(descriptor)
        mapped.close()
        assert shrink.is_exclusively_ours(descriptor)
    finally:
        os.close(descriptor)


def with_one_snapshot(own: DirectoryHarness, closing: Closing) -> tuple[Store, StoredSnapshot]:
    """Return an open store and the only snapshot in it."""
    store = own.make()
    closing(store)
    store.open(NEW_LEDGER)
    own.add("vk-a-b")
    return store, store.verify("vk-a-b")


def test_the_answer_comes_after_both_directories_are_durable(
    own: DirectoryHarness, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, entry = with_one_snapshot(own, closing)
    order: list[str] = []
    rename, fsync = os.rename, os.fsync

    def note_rename(source: str, target: str, **directories: int) -> None:
        order.append("rename")
        rename(source, target, **directories)

    def note_fsync(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    (own.disk / TRASH_DIRECTORY).mkdir(mode=0o700)
    monkeypatch.setattr("agent.snapshots.stores.trash.os.rename", note_rename)
    monkeypatch.setattr("agent.snapshots.stores.trash.os.fsync", note_fsync)
    store.remove(entry)
    assert order[0] == "rename"
    assert set(order[1:]) == {TRASH_DIRECTORY, "snapshots"}


def test_a_rename_that_cannot_be_made_durable_is_undone(
    own: DirectoryHarness, closing: Closing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error means that the name still stands."""
    store, entry = with_one_snapshot(own, closing)
    (own.disk / TRASH_DIRECTORY).mkdir(mode=0o700)

    def fail(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("agent.snapshots.stores.trash.os.fsync", fail)
    with pytest.raises(StoreUnavailableError, match="Input/output error"):
        store.remove(entry)
    monkeypatch.undo()
    assert store.verify("vk-a-b") == entry
    assert not store.remove(entry).already_gone


def test_what_is_only_being_moved_in_is_left_alone(tmp_path: Path) -> None:
    """The store may still put it back."""
    moving = threading.Lock()
    reclaimer = Reclaimer(lambda: opened_directory(tmp_path), moving)
    reclaimer.start()
    (tmp_path / "undecided").mkdir()
    (tmp_path / "doomed").mkdir()
    (tmp_path / "doomed" / "data").write_bytes(b"x" * 10_000)
    reclaimer.add("doomed", 12_288)
    assert wait_for(lambda: reclaimer.waiting_bytes() == 0, 20, what="the trash to be emptied")
    reclaimer.stop()
    assert os.listdir(tmp_path) == ["undecided"]


@pytest.mark.skipif(platform.machine() not in IOPRIO_GET, reason="the number of ioprio_get is not known here")
def test_space_comes_back_at_idle_io_priority_and_nothing_else_is_slowed(tmp_path: Path) -> None:
    """VMs read from the same disk; who answers calls is no background."""
    before = io_priority_class(threading.get_native_id())
    reclaimer = Reclaimer(lambda: opened_directory(tmp_path), threading.Lock())
    reclaimer.start()
    (thread,) = (one for one in threading.enumerate() if one.name == "snapshot-reclaim")
    wait_for(lambda: io_priority_class(thread.native_id or 0) == IOPRIO_CLASS_IDLE, 20, what="the idle class")
    assert io_priority_class(threading.get_native_id()) == before != IOPRIO_CLASS_IDLE
    reclaimer.stop()


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data").write_bytes(b"x")
    made = subprocess.run(["chattr", "+i", tmp_path / "b" / "data"], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip("needs root and a file system with immutable files")
    try:
        reclaimer = Reclaimer(lambda: opened_directory(tmp_path), threading.Lock())
        reclaimer.start()
        wait_for(lambda: os.listdir(tmp_path) == ["b"], 20, what="the others to go")
        wait_for(lambda: caplog.records, 20, what="the report")
        reclaimer.stop()
    finally:
        subprocess.run(["chattr", "-i", tmp_path / "b" / "data"], check=True)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot remove b from the trash, will try again: Operation not permitted"
    ]


CRASHING = """
    import os, signal, sys
    from importlib import import_module
    from agent.snapshots.stores import shrink
    from agent.snapshots.stores.directory import DirectoryStore
    from agent.snapshots.stores.contract import LedgerIdentity
    root, disk, store_id, module_name, function_name, when, count = sys.argv[1:]
    shrink.STEP_BYTES = 1 << 16
    module = import_module("agent.snapshots.stores." + module_name)
    original, calls = getattr(module.os, function_name), 0

    def dying(*arguments, **options):
        global calls
        calls += 1
        if calls == int(count) and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == int(count) and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    store = DirectoryStore(disk, cocoon_root_dir=root)
    store.open(LedgerIdentity(store_id, True))
    store.resume()
    entry = store.verify("vk-a-b")
    setattr(module.os, function_name, dying)
    store.remove(entry)
    print("answered", flush=True)
    store.wait_until_reclaimed(30)
    print("reclaimed", flush=True)
"""

CRASH_POINTS = [
    ("trash", "rename", "before", 1),
    ("trash", "rename", "after", 1),
    ("trash", "fsync", "before", 1),
    ("trash", "fsync", "after", 1),
    ("trash", "fsync", "after", 2),
    ("shrink", "ftruncate", "before", 1),
    ("shrink", "ftruncate", "after", 1),
    ("shrink", "ftruncate", "after", 5),
    ("shrink", "unlink", "before", 1),
    ("shrink", "unlink", "after", 1),
    ("shrink", "unlink", "after", 3),
    ("reclaim", "rmdir", "before", 1),
    ("reclaim", "rmdir", "after", 1),
    ("reclaim", "rmdir", "after", 2),
]


@pytest.mark.parametrize(("module", "function", "when", "count"), CRASH_POINTS)
def test_a_removal_survives_a_kill_at_any_point(
    own: DirectoryHarness, module: str, function: str, when: str, count: int
) -> None:
    """Either the snapshot is whole or its name is free; what was answered stays; what was begun is finished."""
    first = own.make()
    opening = first.open(NEW_LEDGER)
    first.close()
    own.add("vk-a-b", {"memory-ranges": b"m" * MIB, "cow.raw": b"c" * (MIB // 2), "state.json": b"{}"})
    (own.disk / "vk-a-b" / "nested").mkdir()
    (own.disk / "vk-a-b" / "nested" / "data").write_bytes(b"n" * 100_000)
    own.add("vk-a-b-c")
    arguments = [str(own.cocoon_root), str(own.disk), opening.store_id, module, function, when, str(count)]
    command = [sys.executable, "-c", textwrap.dedent(CRASHING), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    was_answered = "answered" in ended.stdout

    store = own.make()
    store.open(LedgerIdentity(opening.store_id, knows_snapshots=True))
    store.resume()
    entries = {entry.name: entry for entry in store.scan_all().entries}
    assert entries["vk-a-b-c"].condition is EntryCondition.READY
    if "vk-a-b" in entries:
        assert not was_answered
        assert entries["vk-a-b"].condition is EntryCondition.READY
        assert (own.disk / "vk-a-b" / "memory-ranges").stat().st_size == MIB
        assert not store.remove(entries["vk-a-b"]).already_gone
    assert store.wait_until_reclaimed(30)
    assert store.trash_bytes() == 0
    assert os.listdir(own.disk / TRASH_DIRECTORY) == []
    store.close()


def test_rounds_leave_nothing_behind(own: DirectoryHarness, closing: Closing) -> None:
    store = own.make()
    closing(store)
    store.open(NEW_LEDGER)
    store.resume()
    for _ in range(100):
        own.add("vk-a-b")
        store.remove(store.verify("vk-a-b"))
    assert store.wait_until_reclaimed(30)
    assert sorted(os.listdir(own.disk)) == [".cocoon-node-store", TRASH_DIRECTORY]
    assert os.listdir(own.disk / TRASH_DIRECTORY) == []
