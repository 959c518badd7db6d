"""Snapshots to measure with: many small ones with sparse files, and one large one in many pieces."""

import json
import os
import subprocess
from pathlib import Path

from benchmarks.processes import BenchmarkError

_MIB = 1 << 20
_MEMORY_BYTES = 512 * _MIB
_STORAGE_BYTES = 10 << 30
_BLOCK = b"\0\1" * 2048


def snapshot_name(index: int) -> str:
    """Return the name of the snapshot with this number: a VM's own, so that it may be retained and purged."""
    return f"vk-bench-vm-{index:06d}"


def write_snapshots(store: Path, count: int, *, small: bool = False, first: int = 0) -> None:
    """Write `count` snapshots of four files, two of them sparse, into a directory store.

    `small` ones have their metadata and nothing else, for counts at which more files would only fill the disk.
    """
    store.mkdir(parents=True, exist_ok=True)
    for index in range(first, first + count):
        name = snapshot_name(index)
        pending = store / f".pending-{name}"
        pending.mkdir()
        _write_metadata(pending, name, index, memory_bytes=0 if small else _MEMORY_BYTES)
        if not small:
            (pending / "state.json").write_bytes(b"{}" * 256)
            _write_sparse(pending / "memory-ranges", _MEMORY_BYTES)
            _write_sparse(pending / "overlay.qcow2", _STORAGE_BYTES)
        pending.rename(store / name)


def write_fragmented_snapshot(store: Path, name: str, size_bytes: int, extents: int) -> Path:
    """Write a snapshot whose memory image has about this many extents and really occupies its size; returns the image.

    Pieces are allocated out of order, so that neighbours in the file are no neighbours on the disk.
    """
    pending = store / f".pending-{name}"
    pending.mkdir(parents=True)
    _write_metadata(pending, name, 0, memory_bytes=size_bytes)
    image = pending / "memory-ranges"
    piece = size_bytes // extents // 4096 * 4096
    descriptor = os.open(image, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.truncate(descriptor, size_bytes)
        for start in (0, 1):
            for index in range(start, extents, 2):
                os.posix_fallocate(descriptor, index * piece, piece)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    pending.rename(store / name)
    return store / name / "memory-ranges"


def _write_metadata(directory: Path, name: str, index: int, *, memory_bytes: int) -> None:
    config = {
        "id": f"{index:032x}",
        "name": name,
        "image": "registry.example/images/base:1",
        "cpu": 2,
        "memory": memory_bytes,
        "storage": _STORAGE_BYTES,
        "hypervisor": "cloud-hypervisor",
        "nics": 1,
    }
    (directory / "snapshot.json").write_text(json.dumps({"version": 1, "config": config}))


def _write_sparse(path: Path, size_bytes: int) -> None:
    """Write a file with one block at each end and a hole between."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, _BLOCK, 0)
        os.pwrite(descriptor, _BLOCK, size_bytes - len(_BLOCK))
    finally:
        os.close(descriptor)


def disk_usage(directory: Path) -> None:
    """Run `du -s`, the peer of every walk over the store."""
    answer = subprocess.run(["du", "-s", str(directory)], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BenchmarkError(f"du -s failed: {answer.stderr.strip()}")


def write_full_snapshots(store: Path, count: int, *, first: int, size_bytes: int) -> None:
    """Write snapshots whose memory image really occupies its size."""
    for index in range(first, first + count):
        name = snapshot_name(index)
        pending = store / f".pending-{name}"
        pending.mkdir()
        _write_metadata(pending, name, index, memory_bytes=size_bytes)
        descriptor = os.open(pending / "memory-ranges", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)
        pending.rename(store / name)
