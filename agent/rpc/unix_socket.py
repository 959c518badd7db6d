"""A Unix socket that nobody but the agent's own user can reach.

Why this exists: whoever reaches the socket may do everything, so its directory is the lock: mode 0700, ours, no link.
"""

import contextlib
import os
import socket
import stat
from dataclasses import dataclass

# The kernel's `sun_path` has 108 bytes, the last of them for the NUL.
_LONGEST_PATH_BYTES = 107


@dataclass(slots=True)
class UnixSocketPath:
    """The path of a socket in a private directory."""

    path: str
    _bound: tuple[int, int] | None = None

    @classmethod
    def prepare(cls, path: str) -> "UnixSocketPath":
        """Make the directory if it is missing and check it; a socket left by a dead process is removed.

        Raises `OSError`, with a sentence when others could get in, somebody listens there, it is no socket, or the path
        is longer than the kernel takes.
        """
        if len(os.fsencode(path)) > _LONGEST_PATH_BYTES:
            raise OSError(f"the path of a Unix socket must be at most {_LONGEST_PATH_BYTES} bytes")
        directory = os.path.dirname(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
            raise PermissionError(f"{directory} must be a directory of this user with mode 0700")
        _remove_leftover(path)
        return cls(path)

    def close_to_others(self) -> None:
        """Take everybody else's rights off the socket itself, in case its directory is opened later."""
        os.chmod(self.path, 0o600)
        self._bound = _identity(self.path)

    def remove(self) -> None:
        """Remove the socket, unless another process has put its own in its place."""
        with contextlib.suppress(OSError):
            if self._bound is None or _identity(self.path) == self._bound:
                os.unlink(self.path)


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _remove_leftover(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(f"{path} exists and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(f"another process listens on {path}")
