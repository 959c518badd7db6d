"""Gives back the space of one file without ever holding the disk for long.

One `unlink` of a fragmented image blocks its file system for seconds, so a large file is first shortened from its end
in steps. Shortening destroys what others may still read, so it is done only to a file that provably nobody else has:
a single link, no other process that has it open or mapped, not a mount point. Any doubt, and it is only unlinked.
"""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import struct
import time
from collections.abc import Callable

from agent.snapshots.stores.scan import BLOCK_BYTES

STEP_BYTES = 128 << 20
MIN_STEP_BYTES = 16 << 20
# A step that took longer is halved for the next one: the longest single call is to stay below 100 ms.
SLOW_STEP_SECONDS = 0.05
# Of linux/fiemap.h: start, length, flags, extents mapped, room for extents, reserved; then one extent of 56 bytes.
_FIEMAP = struct.Struct("=QQIIII")
_FIEMAP_EXTENT_BYTES = 56
_FS_IOC_FIEMAP = 0xC020660B
_UNTIL_THE_END = (1 << 64) - 1
_OPEN = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_file(directory: int, name: str, *, step_done: Callable[[int], bool]) -> bool:
    """Remove a file of an open directory, shortening it first where that is needed and safe.

    `step_done` is told the bytes that came back with each step and answers whether to go on. Returns False when it
    said no; then the file is still there, shorter. A symbolic link is removed, never its target. Raises OSError.
    """
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    allocated_bytes = status.st_blocks * BLOCK_BYTES if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    if allocated_bytes > STEP_BYTES:
        remaining_bytes = _shorten_by_name(directory, name, status, step_done)
        if remaining_bytes is None:
            return False
        allocated_bytes = remaining_bytes
    os.unlink(name, dir_fd=directory)
    step_done(allocated_bytes)
    return True


def is_exclusively_ours(descriptor: int) -> bool:
    """Tell whether nobody but the caller has the file open or mapped. False when the file system cannot tell.

    The kernel grants a write lease only then; it is given back at once. Whoever opens the file in that moment would
    break the lease, which is announced by SIGIO, deadly by default, hence by SIGURG instead, which is ignored.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


def _shorten_by_name(directory: int, name: str, status: os.stat_result, step_done: Callable[[int], bool]) -> int | None:
    """Shorten a file as far as is safe; return the bytes it still occupies, or None when told to stop."""
    try:
        descriptor = os.open(name, _OPEN, dir_fd=directory)
    except OSError:
        return status.st_blocks * BLOCK_BYTES
    try:
        opened = os.fstat(descriptor)
        is_the_same = opened.st_ino == status.st_ino and opened.st_dev == status.st_dev and opened.st_nlink == 1
        is_alone = is_the_same and _mount_id(descriptor) == _mount_id(directory) and is_exclusively_ours(descriptor)
        if not is_alone:
            return opened.st_blocks * BLOCK_BYTES
        return _shorten(descriptor, opened, step_done)
    finally:
        os.close(descriptor)


def _shorten(descriptor: int, status: os.stat_result, step_done: Callable[[int], bool]) -> int | None:
    size, allocated, step = status.st_size, status.st_blocks * BLOCK_BYTES, STEP_BYTES
    while allocated > step:
        hole_start = _start_of_last_hole(descriptor, size, step)
        size = max(0, hole_start - step)
        begun_at = time.monotonic()
        os.ftruncate(descriptor, size)
        if time.monotonic() - begun_at > SLOW_STEP_SECONDS:
            step = max(MIN_STEP_BYTES, step // 2)
        remaining = os.fstat(descriptor).st_blocks * BLOCK_BYTES
        go_on = step_done(allocated - remaining)
        allocated = remaining
        if not go_on:
            return None
    return allocated


def _start_of_last_hole(descriptor: int, size: int, step: int) -> int:
    """Return an offset behind which nothing is allocated, found in a logarithmic number of looks.

    Without it a mostly empty file of many TiB would take as many steps as it has 256 MiB.
    """
    hole_start, jump = size, step
    while hole_start > 0:
        candidate = max(0, hole_start - jump)
        if _occupies_space_behind(descriptor, candidate):
            break
        hole_start = candidate
        jump *= 2
    return hole_start


def _occupies_space_behind(descriptor: int, offset: int) -> bool:
    """Tell whether blocks are allocated from the offset on.

    A look for data is not enough where the file system can tell more: space that was reserved and never written reads
    as a hole, and a preallocated disk would go in one call.
    """
    request = bytearray(_FIEMAP.pack(offset, _UNTIL_THE_END - offset, 0, 0, 1, 0) + bytes(_FIEMAP_EXTENT_BYTES))
    try:
        fcntl.ioctl(descriptor, _FS_IOC_FIEMAP, request)
    except OSError:
        return _has_data_behind(descriptor, offset)
    mapped_extents: int = _FIEMAP.unpack_from(request)[3]
    return mapped_extents > 0


def _has_data_behind(descriptor: int, offset: int) -> bool:
    try:
        os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


def _mount_id(descriptor: int) -> str | None:
    """Return the id of the mount a descriptor was opened through: a file can be a mount point of its own."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("mnt_id:"):
                return line.split()[1]
    return f"unknown to {descriptor}"
