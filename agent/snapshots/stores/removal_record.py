"""The record of a `snapshot rm` that may outlive the agent: which snapshot, and which process.

The engine's removal is never killed, so the next start has to know of it and wait. The record is one small file that is
written in place, because it has to be written when no byte is free; the running command inherits its lock, so that
waiting for the lock is waiting for the command, also when the agent died before it could write the pid down.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import msgspec

from agent.snapshots.errors import StoreFault, StoreUnavailableError
from agent.snapshots.stores.system_errors import store_unavailable

RECORD_BYTES = 512
_POLL_SECONDS = 0.05


class RunningRemoval(msgspec.Struct, frozen=True):
    """A removal by the engine that was begun: full id of the snapshot; pid 0 until it is known."""

    snapshot_id: str
    pid: int = 0


class RemovalRecord:
    """The file at `path`, in the directory of the ledger."""

    def __init__(self, path: str) -> None:
        self.path = path

    def prepare(self) -> None:
        """Create the file with the space it will ever need, while there is space. Raises StoreUnavailableError."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size < RECORD_BYTES:
                    os.pwrite(descriptor, b" " * RECORD_BYTES, 0)
                    os.fsync(descriptor)
                    _sync_directory(os.path.dirname(self.path))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise store_unavailable("write the record of removals", self.path, error) from error

    def interrupted(self) -> RunningRemoval | None:
        """Return the removal that was begun and not seen to end, if any. Raises StoreUnavailableError."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_unavailable("read the record of removals", self.path, error) from error
        try:
            return _read(descriptor)
        except OSError as error:
            raise store_unavailable("read the record of removals", self.path, error) from error
        finally:
            os.close(descriptor)

    def wait_for_end(self, timeout_seconds: float) -> None:
        """Wait until no removal of an earlier run is under way. Raises StoreUnavailableError when it takes too long."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise store_unavailable("read the record of removals", self.path, error) from error
        try:
            deadline = time.monotonic() + timeout_seconds
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise self._still_running(_read(descriptor))
                time.sleep(_POLL_SECONDS)
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def begin(self, snapshot_id: str) -> Iterator[int]:
        """Record that a removal begins and give the descriptor its process has to inherit.

        The caller clears the record when the removal is seen to have ended, either way.
        """
        self.prepare()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise store_unavailable("write the record of removals", self.path, error) from error
        try:
            if not _try_lock(descriptor):
                raise self._still_running(_read(descriptor))
            self.write(descriptor, RunningRemoval(snapshot_id=snapshot_id))
            yield descriptor
        finally:
            os.close(descriptor)

    def write(self, descriptor: int, removal: RunningRemoval | None) -> None:
        """Write the record in place, durably; None clears it."""
        content = msgspec.json.encode(removal) if removal is not None else b""
        try:
            os.pwrite(descriptor, content.ljust(RECORD_BYTES), 0)
            os.fsync(descriptor)
        except OSError as error:
            raise store_unavailable("write the record of removals", self.path, error) from error

    def _still_running(self, removal: RunningRemoval | None) -> StoreUnavailableError:
        who = f"pid {removal.pid} removes {removal.snapshot_id}" if removal is not None else "a process holds it"
        return StoreUnavailableError(
            f"the engine's removal recorded in {self.path} is still running ({who}); nothing is listed before it ends",
            fault=StoreFault.LOCKED,
        )


def _read(descriptor: int) -> RunningRemoval | None:
    content = os.pread(descriptor, RECORD_BYTES, 0).strip()
    if not content:
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(content, type=RunningRemoval)
    # A record torn by power loss: what it named is not known, and the ledger knows what was being purged.
    return None


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
