"""What tests may do to the machine itself: one at a time, restored afterwards, only as root where root is needed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

HUGEPAGES_2MI = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")


@contextmanager
def host_memory_lock() -> Iterator[None]:
    """Hold the lock of every test on this machine that reads or changes the host's own memory figures."""
    path = Path(tempfile.gettempdir()) / "cocoon-node-host-memory.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Hugepages:
    """The host's pool of 2 MiB pages. Made under `host_memory_lock`; `restore` puts back what was there."""

    def __init__(self) -> None:
        self._before = self.count()

    def count(self) -> int:
        """Number of 2 MiB pages the host has now."""
        return int(HUGEPAGES_2MI.read_text())

    def set(self, count: int) -> None:
        """Ask the kernel for exactly `count` pages and wait until it has them."""

        def attempt() -> bool:
            HUGEPAGES_2MI.write_text(str(count))
            return self.count() == count

        wait_for(attempt, 20, what=f"{count} huge pages of 2 MiB")

    def restore(self) -> None:
        """Put back the number of pages found at the start."""
        self.set(self._before)


@contextmanager
def small_file_system(mount_point: Path, *, size_bytes: int, kind: str = "tmpfs") -> Iterator[Path]:
    """Mount a file system of `size_bytes` at `mount_point`: kind `tmpfs`, or `ext4` on a loop device.

    Needs root and the right to mount. It is unmounted at the end, lazily when a process still holds it.
    """
    mount_point.mkdir(parents=True, exist_ok=True)
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", mount_point)
    else:
        image = mount_point.with_suffix(".img")
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run(f"mkfs.{kind}", "-q", "-F", image)
        _run("mount", "-o", "loop", image, mount_point)
    try:
        yield mount_point
    finally:
        _run("umount", "--lazy", mount_point)


def can_mount(directory: Path) -> bool:
    """Tell whether this process may mount file systems, by doing it."""
    if os.geteuid() != 0:
        return False
    try:
        with small_file_system(directory / "probe", size_bytes=1 << 20):
            return True
    except subprocess.CalledProcessError:
        return False


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True)
