"""What the kernel says this host has, read from `/proc`, `/sys` and `statvfs` under switchable roots.

Why this exists: these are the raw numbers of a Node, so each comes from the file that tells of the *host*: the agent's
own CPU affinity, cpuset, CPU quota or memory limit change none of them. Files are read whole in one call and searched
for the wanted keys, because that takes half the time of splitting them into lines, and a busy host is read often.
"""

import os
from dataclasses import dataclass
from typing import NamedTuple

from common.quantity import MAX_INT64

_MAX_FILE_BYTES = 65536
_MILLICORES_PER_CORE = 1000
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC


class ProbeError(Exception):
    """A reading failed. `resource` names what is unknown now, `origin` the file or call, `problem` what was wrong."""

    reason = "PROBE_FAILED"

    def __init__(self, resource: str, origin: str, problem: str) -> None:
        super().__init__(f"{resource} cannot be read from {origin}: {problem}")
        self.resource = resource
        self.origin = origin
        self.problem = problem


class MemoryReading(NamedTuple):
    """`/proc/meminfo`: the memory, and the pool of pages of the default huge page size (0 pages when there is none)."""

    total_bytes: int
    default_page_bytes: int
    default_pages: int


class StorageReading(NamedTuple):
    """`statvfs` of the root directory, and the device that holds it."""

    total_bytes: int
    available_bytes: int
    device: int


@dataclass(frozen=True, slots=True)
class HostProbe:
    """Reads one host. Every method raises `ProbeError`, for a zero too: no host has none of these."""

    procfs: str
    sysfs: str
    root_dir: str

    @property
    def cpu_origin(self) -> str:
        """The file that lists the host's online CPUs."""
        return f"{self.sysfs}/devices/system/cpu/online"

    @property
    def memory_origin(self) -> str:
        """The file that tells the memory and the default huge pages."""
        return f"{self.procfs}/meminfo"

    @property
    def hugepages_origin(self) -> str:
        """The directory with one entry for each huge page size."""
        return f"{self.sysfs}/kernel/mm/hugepages"

    @property
    def storage_origin(self) -> str:
        """The call that tells the file system's size."""
        return f"statvfs {self.root_dir}"

    def read_cpu_millicores(self) -> int:
        """Return the online CPUs of the host, in millicores."""
        origin = self.cpu_origin
        text = _read("cpu", origin)
        try:
            count = _listed(text)
        except ValueError:
            raise ProbeError("cpu", origin, "it is not a list of CPUs") from None
        if count == 0:
            raise ProbeError("cpu", origin, "it lists no CPU")
        return count * _MILLICORES_PER_CORE

    def read_memory(self) -> MemoryReading:
        """Return the host's memory and its default huge pages."""
        origin = self.memory_origin
        data = _read("memory", origin)
        total = _number_after(data, b"MemTotal:", origin)
        if not total:
            raise ProbeError("memory", origin, "MemTotal is missing or 0")
        pages = _number_after(data, b"HugePages_Total:", origin) or 0
        page_kilobytes = _number_after(data, b"Hugepagesize:", origin) or 0
        return MemoryReading(total * 1024, page_kilobytes * 1024, pages if page_kilobytes else 0)

    def read_hugepages(self, memory: MemoryReading) -> dict[int, int]:
        """Return bytes in huge pages by page size in bytes, sizes without pages left out.

        The default size comes from `memory`, the others from `/sys`; a kernel without huge pages has neither.
        """
        found = {}
        if memory.default_pages:
            found[memory.default_page_bytes] = memory.default_pages * memory.default_page_bytes
        directory = self.hugepages_origin
        try:
            entries = os.listdir(directory)
        except FileNotFoundError:
            return found
        except OSError as error:
            raise ProbeError("hugepages", directory, os.strerror(error.errno or 0)) from None
        for entry in entries:
            if not entry.startswith("hugepages-") or not entry.endswith("kB"):
                continue
            size = _whole("hugepages", directory, entry[10:-2]) * 1024
            if size == memory.default_page_bytes:
                continue
            origin = f"{directory}/{entry}/nr_hugepages"
            if pages := _whole("hugepages", origin, _read("hugepages", origin)):
                found[size] = pages * size
        return found

    def read_storage(self) -> StorageReading:
        """Return size and free space of the file system that holds the root directory."""
        origin = self.storage_origin
        try:
            device = os.stat(self.root_dir).st_dev
            space = os.statvfs(self.root_dir)
        except OSError as error:
            raise ProbeError("ephemeral-storage", origin, os.strerror(error.errno or 0)) from None
        if space.f_blocks == 0 or space.f_frsize == 0:
            raise ProbeError("ephemeral-storage", origin, "the file system reports no blocks")
        total_bytes = space.f_blocks * space.f_frsize
        if total_bytes > MAX_INT64:
            raise ProbeError("ephemeral-storage", origin, "the file system reports more than 2^63-1 bytes")
        # Blocks kept for root make the free ones negative on some file systems, which arrives as a huge number here.
        available_blocks = space.f_bavail if space.f_bavail <= space.f_blocks else 0
        return StorageReading(total_bytes, available_blocks * space.f_frsize, device)


def _read(resource: str, path: str) -> bytes:
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        raise ProbeError(resource, path, os.strerror(error.errno or 0)) from None
    try:
        return os.read(descriptor, _MAX_FILE_BYTES)
    except OSError as error:
        raise ProbeError(resource, path, os.strerror(error.errno or 0)) from None
    finally:
        os.close(descriptor)


def _number_after(data: bytes, key: bytes, origin: str) -> int | None:
    """Return the number of a `Key:   123 kB` line, None when there is no such line."""
    start = data.find(key)
    if start < 0:
        return None
    start += len(key)
    end = data.find(b"\n", start)
    text = data[start : end if end >= 0 else len(data)]
    return _whole("memory", origin, text[:-3] if text.endswith(b" kB") else text)


def _whole(resource: str, origin: str, text: str | bytes) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ProbeError(resource, origin, "a whole number was expected")
    return number


def _listed(text: bytes) -> int:
    """Count a kernel CPU list such as `0-3,8-11`; raises `ValueError` when it is none."""
    count = 0
    for part in text.strip().split(b","):
        if not part:
            continue
        first, dash, last = part.partition(b"-")
        size = int(last) - int(first) + 1 if dash else int(int(first) >= 0)
        if size < 1:
            raise ValueError(text)
        count += size
    return count
