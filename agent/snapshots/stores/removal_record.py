"""The record of a `snapshot rm` that may outlive the agent: which snapshot, what it looked like, which process.

The engine's removal is never killed, so the next start has to know of it and wait. The record is one small file that is
written in place, because it has to be written when no byte is free; the running command inherits its lock, so that
waiting for the lock is waiting for the command, also when the agent died before it could write the pid down.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator

import msgspec

from agent.snapshots.errors import StoreFault, StoreUnavailableError
from agent.snapshots.stores.durable import sync_directory
from agent.snapshots.stores.system_errors import store_unavailable

RECORD_BYTES = 4096
MAX_REMOVALS = 24
_POLL_SECONDS = 0.05


class RunningRemoval(msgspec.Struct, frozen=True):
    """A removal by the engine that was begun and not seen to end.

    `fingerprint` is that of the data before it began: as long as they look the same, nothing has been removed. `pid` is
    0 until it is known.
    """

    snapshot_id: str
    fingerprint: int
    pid: int = 0


class RemovalRecord:
    """The file at `path`, in the directory of the ledger."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the file with the space it will ever need, while there is space. Raises StoreUnavailableError."""
        with self._opened(os.O_RDWR | os.O_CREAT) as descriptor:
            if os.fstat(descriptor).st_size < RECORD_BYTES:
                os.pwrite(descriptor, b" " * RECORD_BYTES, 0)
                os.fsync(descriptor)
                sync_directory(os.path.dirname(self.path))

    def unfinished(self) -> tuple[RunningRemoval, ...]:
        """Return the removals that were begun and not seen to end. Raises StoreUnavailableError."""
        with self._opened(os.O_RDONLY) as descriptor:
            return _read(descriptor)

    def wait_for_end(self, timeout_seconds: float) -> None:
        """Wait until no removal of an earlier run is under way. Raises StoreUnavailableError when it takes too long."""
        with self._opened(os.O_RDWR) as descriptor:
            deadline = time.monotonic() + timeout_seconds
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise self._still_running(_read(descriptor))
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Give the locked descriptor: a process that inherits it holds the lock until it ends, whatever we do."""
        self.prepare()
        with self._opened(os.O_RDWR) as descriptor:
            if not _try_lock(descriptor):
                raise self._still_running(_read(descriptor))
            yield descriptor

    def write(self, descriptor: int, removals: Iterable[RunningRemoval]) -> None:
        """Write the record in place, durably. Raises StoreUnavailableError."""
        content = msgspec.json.encode(list(removals)[-MAX_REMOVALS:])
        try:
            os.pwrite(descriptor, content.ljust(RECORD_BYTES), 0)
            os.fsync(descriptor)
        except OSError as error:
            raise store_unavailable("write the record of removals", self.path, error) from error

    @contextlib.contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        try:
            descriptor = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_unavailable("use the record of removals", self.path, error) from error

    def _still_running(self, removals: tuple[RunningRemoval, ...]) -> StoreUnavailableError:
        who = ", ".join(f"pid {removal.pid} removes {removal.snapshot_id}" for removal in removals if removal.pid)
        return StoreUnavailableError(
            f"the engine's removal recorded in {self.path} is still running ({who or 'its pid is not known'}); "
            "nothing is listed before it ends",
            fault=StoreFault.REMOVAL_RUNNING,
        )


def _read(descriptor: int) -> tuple[RunningRemoval, ...]:
    content = os.pread(descriptor, RECORD_BYTES, 0).strip()
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(content, type=tuple[RunningRemoval, ...])
    # Empty, or torn by power loss: then what it named is not known, and the engine's list is all there is.
    return ()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
