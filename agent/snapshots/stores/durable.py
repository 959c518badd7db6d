"""Names that survive power loss: a file is durable only when the directory that names it is."""

import os


def sync_directory(path: str) -> None:
    """Return when what a directory names is durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
