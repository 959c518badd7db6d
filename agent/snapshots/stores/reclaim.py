"""One background thread that empties the trash of the directory store at low I/O priority.

It takes up what earlier runs left there, and then only what the store says has been moved in durably: an entry that the
store may still put back is left alone. It never follows a link, never enters another file system, and what it cannot
remove it reports once and tries again later.
"""

import contextlib
import ctypes
import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable

from agent.snapshots.errors import SnapshotError
from agent.snapshots.stores.scan import OPEN_DIRECTORY, has_vanished, read_contents
from agent.snapshots.stores.shrink import remove_file
from agent.snapshots.stores.trash import is_mistaken, set_free

_log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
# After each snapshot the thread rests for half the time it took, so that a long collection leaves the processor and
# the interpreter lock to those who answer calls.
REST_SHARE = 0.5
MAX_REST_SECONDS = 0.02
# Whoever waits for a removal waits for its fsync, and that waits for whatever we unlink meanwhile. So a snapshot's turn
# comes when nothing was moved in for a moment, and at the latest after a few of these.
QUIET_SECONDS = 0.02
MAX_PATIENCE_SECONDS = 0.25

_IOPRIO_SET_NUMBERS = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_IDLE = 3 << 13

OpenTrash = Callable[[], contextlib.AbstractContextManager[int]]


class Reclaimer:
    """Empties a trash.

    `open_trash` gives its open directory, checked to be the right one, and raises SnapshotError. `moving` is held by
    the store while it moves something in: then the trash holds an entry whose removal is not yet decided.
    """

    def __init__(self, open_trash: OpenTrash, moving: threading.Lock) -> None:
        self._open_trash = open_trash
        self._moving = moving
        self._has_taken_over = False
        self._guard = threading.Lock()
        self._bytes_by_item: dict[str, int] = {}
        self._reported: set[str] = set()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._added_at = 0.0

    def start(self) -> None:
        """Measure what earlier runs left in the trash, then begin to empty it. May be repeated."""
        if self._thread is not None and self._thread.is_alive():
            self._wake.set()
            return
        self._stop.clear()
        self._has_taken_over = False
        with contextlib.suppress(SnapshotError, OSError), self._open_trash() as trash:
            self._take_over(trash)
        self._wake.set()
        self._idle.clear()
        self._thread = threading.Thread(target=self._run, name="snapshot-reclaim", daemon=True)
        self._thread.start()

    def add(self, item: str, size_bytes: int) -> None:
        """Take note of an entry that has been renamed into the trash and is durable there."""
        with self._guard:
            self._bytes_by_item[item] = size_bytes
            self._idle.clear()
        self._added_at = time.monotonic()
        self._wake.set()

    def waiting_bytes(self) -> int:
        """Return the disk space that has not come back yet."""
        with self._guard:
            return sum(self._bytes_by_item.values())

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        """Wait until everything that can be removed has been; False when the time is over first."""
        return self._idle.wait(timeout_seconds)

    def stop(self) -> None:
        """Stop after the step that is under way; what is left stays in the trash."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        lower_io_priority()
        while not self._stop.is_set():
            self._wake.clear()
            has_failed = self._empty_once()
            with self._guard:
                if not self._wake.is_set():
                    self._idle.set()
            self._wake.wait(RETRY_SECONDS if has_failed else None)

    def _empty_once(self) -> bool:
        """Remove everything in the trash; return whether something could not be removed."""
        has_failed = False
        try:
            with self._open_trash() as trash:
                self._take_over(trash)
                with self._guard:
                    items = sorted(self._bytes_by_item)
                for item in items:
                    self._let_removals_go_first()
                    if self._stop.is_set():
                        return has_failed
                    begun_at = time.monotonic()
                    has_failed |= not self._remove_item(trash, item)
                    self._stop.wait(min(MAX_REST_SECONDS, (time.monotonic() - begun_at) * REST_SHARE))
        except SnapshotError as error:
            self._report("", f"the trash cannot be emptied now: {error}")
            return True
        except OSError as error:
            self._report("", f"the trash cannot be listed: {error.strerror}")
            return True
        self._reported.discard("")
        return has_failed

    def _let_removals_go_first(self) -> None:
        latest = time.monotonic() + MAX_PATIENCE_SECONDS
        while (wait := min(latest, self._added_at + QUIET_SECONDS) - time.monotonic()) > 0:
            if self._stop.wait(wait):
                return

    def _remove_item(self, trash: int, item: str) -> bool:
        try:
            is_gone = self._remove_tree(trash, item)
        except OSError as error:
            self._report(item, f"cannot remove {item} from the trash, will try again: {error.strerror}")
            return False
        if is_gone:
            self._reported.discard(item)
            with self._guard:
                self._bytes_by_item.pop(item, None)
        return True

    def _remove_tree(self, trash: int, item: str) -> bool:
        """Remove one entry of the trash. Directories below are lifted into the trash: no depth is too deep."""
        lifted = [item]
        try:
            while lifted:
                if not self._remove_flat(trash, lifted[-1], item, lifted):
                    return False
        finally:
            # What could not be removed is an entry of its own from now on; the one it came from may be gone.
            with self._guard:
                self._bytes_by_item |= {name: 0 for name in lifted if name not in self._bytes_by_item}
        return True

    def _remove_flat(self, trash: int, name: str, item: str, lifted: list[str]) -> bool:
        def step_done(freed_bytes: int) -> bool:
            with self._guard:
                if item in self._bytes_by_item:
                    self._bytes_by_item[item] = max(0, self._bytes_by_item[item] - freed_bytes)
            return not self._stop.is_set()

        try:
            directory = os.open(name, OPEN_DIRECTORY, dir_fd=trash)
        except OSError as error:
            if not has_vanished(error):
                raise
            with contextlib.suppress(FileNotFoundError):
                if not remove_file(trash, name, step_done=step_done):
                    return False
            lifted.pop()
            return True
        try:
            found = []
            with os.scandir(directory) as entries:
                children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            for child, is_directory in children:
                if is_directory:
                    found.append(_lift(directory, child, trash))
                elif not remove_file(directory, child, step_done=step_done):
                    return False
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=trash)
        lifted.pop()
        lifted.extend(found)
        return True

    def _take_over(self, trash: int) -> None:
        """Make everything in the trash ours to remove, once a run. Raises OSError if it cannot be listed."""
        if self._has_taken_over:
            return
        with self._moving:
            measured = {item: _measure(trash, item) for item in os.listdir(trash) if not _is_set_free(trash, item)}
            with self._guard:
                self._bytes_by_item = measured | self._bytes_by_item
            self._has_taken_over = True

    def _report(self, item: str, message: str) -> None:
        if item not in self._reported:
            self._reported.add(item)
            _log.warning(message)


def lower_io_priority() -> None:
    """Put the calling thread into the idle I/O class. Nothing depends on it: schedulers without classes ignore it."""
    number = _IOPRIO_SET_NUMBERS.get(platform.machine())
    if number is not None:
        library = ctypes.CDLL(None, use_errno=True)
        library.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE)


def _lift(directory: int, name: str, trash: int) -> str:
    token = f"{secrets.token_hex(8)}~nested"
    os.rename(name, token, src_dir_fd=directory, dst_dir_fd=trash)
    return token


def _is_set_free(trash: int, item: str) -> bool:
    """Give back what an earlier run moved in by mistake and had no time to put back."""
    if not is_mistaken(trash, item):
        return False
    name = set_free(trash, item)
    _log.warning("another snapshot than was removed lay in the trash as %s; it is %s in the store now", item, name)
    return True


def _measure(trash: int, item: str) -> int:
    try:
        directory = os.open(item, OPEN_DIRECTORY, dir_fd=trash)
    except OSError:
        return 0
    try:
        return read_contents(directory, os.fstat(directory)).exclusive_bytes
    except OSError:
        return 0
    finally:
        os.close(directory)
