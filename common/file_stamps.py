"""What tells one state of a file from the next, for files that others replace while we run."""

import os

FileStamp = tuple[int, int, int, int, int]


def file_stamp(status: os.stat_result) -> FileStamp:
    """Return what differs once the file was written, or another put in its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
