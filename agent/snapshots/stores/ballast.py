"""A small file beside the ledger that is given up when no byte is free, so that a removal can still be recorded."""

import contextlib
import errno
import os

BALLAST_BYTES = 1 << 20


class Ballast:
    """The file at `path`. It holds real blocks; a sparse file would give nothing back."""

    def __init__(self, path: str, *, size_bytes: int = BALLAST_BYTES) -> None:
        self.path = path
        self._size_bytes = size_bytes

    def is_present(self) -> bool:
        """Tell whether there is something to give up."""
        try:
            return os.lstat(self.path).st_blocks > 0
        except OSError:
            return False

    def ensure(self) -> bool:
        """Put the file there, whole or not at all; False when there is no space for it. Raises OSError otherwise."""
        try:
            if os.lstat(self.path).st_size >= self._size_bytes:
                return True
        except FileNotFoundError:
            pass
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size_bytes)
            os.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        finally:
            os.close(descriptor)
        return True

    def give_up(self) -> bool:
        """Free its space; False when there was none left to free. Raises OSError."""
        was_present = self.is_present()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        return was_present
