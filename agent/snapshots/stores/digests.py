"""Numbers of which very many are kept: made so that each takes as little room as it can.

Why this exists: every snapshot has a version, a signature and sizes, and a Python number is an object of its own.
"""

import os

MAX_SHARED_NUMBERS = 4096
# What is smaller Python keeps in 32 bytes, a whole hash in 48.
DIGEST_MASK = (1 << 60) - 1
_shared_numbers: dict[int, int] = {}


def shared_number(number: int) -> int:
    """Return the number, as one object in memory for all snapshots that have it: few sizes of memory are in use."""
    if len(_shared_numbers) > MAX_SHARED_NUMBERS:
        _shared_numbers.clear()
    return _shared_numbers.setdefault(number, number)


def version_of(inode: int, metadata: os.stat_result | None) -> int:
    """Return a number that differs when another snapshot stands under the name; a rename does not change it.

    It goes by the metadata's change time: unpacking sets the modification time back, and inodes are given out again.
    """
    if metadata is None:
        return hash((inode, 0)) & DIGEST_MASK
    return hash((inode, metadata.st_ino, metadata.st_ctime_ns, metadata.st_size)) & DIGEST_MASK
