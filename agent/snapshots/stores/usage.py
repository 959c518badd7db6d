"""How full a store's file system is, in bytes and inodes."""

import os

from agent.snapshots.stores.contract import FileSystemUsage


def file_system_usage(directory: int) -> FileSystemUsage:
    """Measure the file system of an open directory. Raises OSError."""
    numbers = os.fstatvfs(directory)
    return FileSystemUsage(
        device=os.fstat(directory).st_dev,
        total_bytes=numbers.f_blocks * numbers.f_frsize,
        available_bytes=numbers.f_bavail * numbers.f_frsize,
        total_inodes=numbers.f_files,
        available_inodes=numbers.f_favail,
        read_only=bool(numbers.f_flag & os.ST_RDONLY),
    )
