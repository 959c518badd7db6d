"""The trash of the directory store: where a removed snapshot's name ends and its space begins to come back.

It is a private directory in the store itself, hence on the same file system, and everything in it is doomed: whatever
was renamed into it durably is removed, now or after the next start. The rename is its own record, because it is the one
thing that still works when no byte is free.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator

from agent.snapshots.errors import StoreFault, StoreUnavailableError
from agent.snapshots.stores.scan import OPEN_DIRECTORY
from agent.snapshots.stores.system_errors import store_unavailable

TRASH_DIRECTORY = ".cocoon-node-trash"
# Never removed, and shown as being written until somebody gives it its name back.
RESTORED_PREFIX = ".pending-restored-"
_TOKEN_BYTES = 8
_NAME_CHARACTERS = 120
_TOKEN = re.compile(r"[0-9a-f]{16}~([0-9a-f]{1,16})~")


@contextlib.contextmanager
def open_trash(root: int, location: str, *, create: bool) -> Iterator[int]:
    """Give the open trash of an open store.

    Raises StoreUnavailableError if it is missing and may not be created, no real directory, or on another file system.
    """
    try:
        descriptor = _open(root, create=create)
    except OSError as error:
        raise store_unavailable("open the trash of", location, error) from error
    try:
        if os.fstat(descriptor).st_dev != os.fstat(root).st_dev:
            raise StoreUnavailableError(
                f"the trash {TRASH_DIRECTORY} of {location} is on another file system, so nothing can be removed "
                "durably by a rename; unmount what is mounted there",
                fault=StoreFault.TRASH_ON_OTHER_FILE_SYSTEM,
            )
        yield descriptor
    finally:
        os.close(descriptor)


def move_in(root: int, name: str, trash: int, inode: int) -> str:
    """Rename an entry of the store into the trash and return its name there. Raises OSError; not yet durable.

    `inode` is that of the directory that is to go. A rename goes by name only, so what stands there may be another one
    by now; its name in the trash tells so, also to the next start.
    """
    # The name is only for people who look into the trash; the token makes it unique.
    token = f"{secrets.token_hex(_TOKEN_BYTES)}~{inode:x}~{name[:_NAME_CHARACTERS]}"
    os.rename(name, token, src_dir_fd=root, dst_dir_fd=trash)
    return token


def is_mistaken(trash: int, token: str) -> bool:
    """Tell whether something else was moved in under this name than was to go. Raises OSError."""
    parts = _TOKEN.match(token)
    return parts is not None and os.stat(token, dir_fd=trash, follow_symlinks=False).st_ino != int(parts[1], 16)


def set_free(trash: int, token: str) -> str:
    """Give a mistaken entry back to the store as one that is never removed; return its name. Raises OSError."""
    name = RESTORED_PREFIX + token[: 2 * _TOKEN_BYTES]
    os.rename(token, f"../{name}", src_dir_fd=trash, dst_dir_fd=trash)
    return name


def make_durable(root: int, trash: int) -> None:
    """Return when renames between the two directories survive power loss. Raises OSError."""
    os.fsync(trash)
    os.fsync(root)


def _open(root: int, *, create: bool) -> int:
    try:
        return os.open(TRASH_DIRECTORY, OPEN_DIRECTORY, dir_fd=root)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(TRASH_DIRECTORY, 0o700, dir_fd=root)
    os.fsync(root)
    return os.open(TRASH_DIRECTORY, OPEN_DIRECTORY, dir_fd=root)
