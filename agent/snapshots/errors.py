"""What can go wrong in the snapshot cache, as types with stable reasons.

The cache and the stores raise these; the gRPC service turns them into status codes and `google.rpc.ErrorInfo`, the
command line into one line for a person. Nothing here knows about gRPC, and no message carries a stack or a secret.
"""

import enum
from collections.abc import Mapping
from typing import ClassVar

QUOTED_VALUE_CHARACTERS = 100


def quoted(value: object) -> str:
    """Return a value for a message: printable, quoted, and cut at 100 characters."""
    text = str(value)
    shown = text if len(text) <= QUOTED_VALUE_CHARACTERS else text[:QUOTED_VALUE_CHARACTERS] + "…"
    return '"' + shown.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'


class SnapshotError(Exception):
    """An error of the snapshot cache: `reason` is stable for programs, the message is for people."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.metadata: dict[str, str] = dict(metadata or {})


class InvalidNameError(SnapshotError):
    """A name that cannot be a snapshot's or a VM's; raised before any file or process is touched."""

    reason = "INVALID_NAME"

    def __init__(self, message: str, *, field: str = "name") -> None:
        super().__init__(message, metadata={"field": field})
        self.field = field


class InvalidFieldError(SnapshotError):
    """A request's field has a value that cannot be; the service answers with a `BadRequest` field violation."""

    reason = "INVALID_FIELD"

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message, metadata={"field": field})
        self.field = field


class SnapshotNotFoundError(SnapshotError):
    """No snapshot of that name is in the store."""

    reason = "SNAPSHOT_NOT_FOUND"


class SnapshotInUseError(SnapshotError):
    """An owner claims the snapshot, or the engine says that a VM uses it."""

    reason = "SNAPSHOT_IN_USE"


class SnapshotPendingError(SnapshotError):
    """The snapshot is being written or imported."""

    reason = "SNAPSHOT_IN_USE"


class SnapshotChangedError(SnapshotError):
    """Another snapshot stands under the name than the one the decision was made for; nothing was removed."""

    reason = "SNAPSHOT_ID_MISMATCH"


class SnapshotIdMismatchError(SnapshotError):
    """The snapshot's id is not the expected one: a stale copy, or another snapshot under the same name."""

    reason = "SNAPSHOT_ID_MISMATCH"


class SnapshotInvalidError(SnapshotError):
    """The snapshot was read completely and is wrong."""

    reason = "SNAPSHOT_INVALID"


class StaleControllerEpochError(SnapshotError):
    """A controller that has lost its leadership; the metadata tells the highest epoch known."""

    reason = "STALE_CONTROLLER_EPOCH"

    def __init__(self, message: str, *, highest_epoch: int) -> None:
        super().__init__(message, metadata={"highest_epoch": str(highest_epoch)})
        self.highest_epoch = highest_epoch


class StaleOwnerSyncError(SnapshotError):
    """A sync with a revision that is not newer than the last one applied."""

    reason = "STALE_OWNER_SYNC"


class WrongClusterError(SnapshotError):
    """The caller belongs to another cluster than the one this host was accepted for."""

    reason = "WRONG_CLUSTER"


class WrongNodeError(SnapshotError):
    """The ledger was written under another node name, and no operator has accepted the change."""

    reason = "WRONG_NODE"


class TooManyRequestsError(SnapshotError):
    """Too many collections, watches or calls are under way."""

    reason = "TOO_MANY_REQUESTS"


class LedgerUnavailableError(SnapshotError):
    """The ledger cannot be read or written, so nothing may be changed."""

    reason = "STORE_UNAVAILABLE"


class StoreFault(enum.Enum):
    """What exactly is the matter with a store that is not available."""

    MISSING = "MISSING"
    NOT_A_DIRECTORY = "NOT_A_DIRECTORY"
    MARKER_MISSING = "MARKER_MISSING"
    MARKER_DIFFERENT = "MARKER_DIFFERENT"
    MARKER_UNREADABLE = "MARKER_UNREADABLE"
    WRONG_KIND = "WRONG_KIND"
    LOCKED = "LOCKED"
    REMOVAL_RUNNING = "REMOVAL_RUNNING"
    READ_ONLY = "READ_ONLY"
    FULL = "FULL"
    TRASH_ON_OTHER_FILE_SYSTEM = "TRASH_ON_OTHER_FILE_SYSTEM"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    INPUT_OUTPUT_ERROR = "INPUT_OUTPUT_ERROR"
    ENGINE_MISSING = "ENGINE_MISSING"
    ENGINE_FAILED = "ENGINE_FAILED"
    ENGINE_TIMEOUT = "ENGINE_TIMEOUT"
    ENGINE_ANSWER_UNREADABLE = "ENGINE_ANSWER_UNREADABLE"
    NOT_OPEN = "NOT_OPEN"


class StoreUnavailableError(SnapshotError):
    """The store, or the engine that owns it, cannot be trusted or used now: never a verdict on a snapshot.

    `fault` tells what is wrong; it is also in the metadata as `fault`.
    """

    reason = "STORE_UNAVAILABLE"

    def __init__(self, message: str, *, fault: StoreFault) -> None:
        super().__init__(message, metadata={"fault": fault.value})
        self.fault = fault
