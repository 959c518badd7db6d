"""What a failed system call on a store means, said once for all stores."""

import errno

from agent.snapshots.errors import StoreFault, StoreUnavailableError

_FAULTS = {
    errno.ENOENT: StoreFault.MISSING,
    errno.ENODEV: StoreFault.MISSING,
    errno.ENOTDIR: StoreFault.NOT_A_DIRECTORY,
    errno.ELOOP: StoreFault.NOT_A_DIRECTORY,
    errno.EROFS: StoreFault.READ_ONLY,
    errno.ENOSPC: StoreFault.FULL,
    errno.EDQUOT: StoreFault.FULL,
    errno.EXDEV: StoreFault.TRASH_ON_OTHER_FILE_SYSTEM,
    errno.EACCES: StoreFault.PERMISSION_DENIED,
    errno.EPERM: StoreFault.PERMISSION_DENIED,
}

_ADVICE = {
    StoreFault.MISSING: "mount its disk or create it",
    StoreFault.NOT_A_DIRECTORY: "it must be a directory",
    StoreFault.READ_ONLY: "its file system is mounted read-only",
    StoreFault.FULL: "its file system is full",
    StoreFault.TRASH_ON_OTHER_FILE_SYSTEM: "its trash must be on the same file system",
    StoreFault.PERMISSION_DENIED: "the agent may not do that there",
    StoreFault.INPUT_OUTPUT_ERROR: "its disk does not answer as it should",
}


def store_unavailable(doing: str, location: str, error: OSError) -> StoreUnavailableError:
    """Return the error for a failed system call, with what was being done, where, and what to do about it."""
    fault = _FAULTS.get(error.errno or 0, StoreFault.INPUT_OUTPUT_ERROR)
    cause = error.strerror or str(error)
    return StoreUnavailableError(f"cannot {doing} {location}: {cause}; {_ADVICE[fault]}", fault=fault)
