"""Reads one snapshot's directory: sizes, hard links, and the metadata beside the data.

Everything is reached from an open directory by file descriptor and nothing is followed: a symbolic link counts as
itself, another file system mounted inside counts as nothing. Only `snapshot.json` is ever opened, and only as a regular
file of bounded length. This is the hot path of a full scan: about 20 system calls and few allocations a snapshot.
"""

import errno
import os
import stat
import sys
from dataclasses import dataclass, field

from agent.snapshots.stores.contract import EntryCondition, LinkedFile, StoredSnapshot
from agent.snapshots.stores.envelope import (
    MAX_ENVELOPE_BYTES,
    Envelope,
    EnvelopeInvalidError,
    EnvelopeTooNewError,
    decode_envelope,
    shortened_files,
)

METADATA_FILE = "snapshot.json"
MAX_NESTED_DIRECTORIES = 256
MAX_PROBLEMS = 20
BLOCK_BYTES = 512
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a named pipe put in place of the file would hold the scan for ever.
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(slots=True)
class DirectoryContents:
    """What lies in a snapshot's directory. Sizes in bytes, times in Unix seconds; `sizes` has top-level files only."""

    signature: int = 0
    inode: int = 0
    allocated_bytes: int = 0
    exclusive_bytes: int = 0
    apparent_bytes: int = 0
    last_touch_at: float = 0.0
    sizes: dict[str, int] = field(default_factory=dict)
    links: dict[tuple[int, int], LinkedFile] | None = None
    metadata: os.stat_result | None = None
    metadata_is_foreign: bool = False
    nested: list[str] | None = None
    problems: list[str] = field(default_factory=list)
    is_complete: bool = True


def directory_signature(status: os.stat_result) -> int:
    """Return a number that differs when a directory is another one or its entries have changed."""
    return hash((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns))


def version_of(contents: DirectoryContents) -> int:
    """Return a number that differs when another snapshot stands under the name; a rename does not change it."""
    metadata = contents.metadata
    if metadata is None:
        return hash((contents.inode, 0))
    return hash((contents.inode, metadata.st_ino, metadata.st_mtime_ns, metadata.st_size))


def read_contents(directory: int, *, device: int) -> DirectoryContents:
    """Read sizes of everything below an open directory, staying on `device`. Raises OSError if it cannot be listed."""
    status = os.fstat(directory)
    contents = DirectoryContents(
        signature=directory_signature(status),
        inode=status.st_ino,
        allocated_bytes=status.st_blocks * BLOCK_BYTES,
        exclusive_bytes=status.st_blocks * BLOCK_BYTES,
    )
    _add_entries(contents, directory, device, "")
    if contents.nested:
        _add_nested(contents, directory, device)
    return contents


def describe(
    name: str, contents: DirectoryContents, envelope: Envelope, *, condition: EntryCondition, target_name: str
) -> StoredSnapshot:
    """Join what lies on the disk with what the metadata says."""
    metadata = contents.metadata
    written_at = metadata.st_mtime if metadata is not None else contents.last_touch_at
    links = contents.links
    problems = (*contents.problems, *envelope.problems) if contents.problems or envelope.problems else ()
    return StoredSnapshot(
        name=name,
        snapshot_id=envelope.snapshot_id,
        condition=condition,
        target_name=target_name,
        allocated_bytes=contents.allocated_bytes,
        exclusive_bytes=contents.exclusive_bytes,
        apparent_bytes=contents.apparent_bytes,
        linked_files=tuple(links.values()) if links else (),
        created_at=envelope.created_at or written_at,
        last_use_at=max(envelope.last_use_at, contents.last_touch_at),
        image=sys.intern(envelope.image),
        hypervisor=sys.intern(envelope.hypervisor),
        cpu_count=envelope.cpu_count,
        memory_bytes=envelope.memory_bytes,
        problems=problems[:MAX_PROBLEMS],
        version=version_of(contents),
    )


def read_metadata(directory: int) -> bytes:
    """Return the bytes of `snapshot.json` in an open directory.

    Raises OSError if it cannot be read, EnvelopeTooNewError if it is too large to be metadata that is known.
    """
    descriptor = os.open(METADATA_FILE, OPEN_FILE, dir_fd=directory)
    try:
        data = os.read(descriptor, 16384)
        if len(data) == 16384:
            parts = [data]
            total = len(data)
            while total <= MAX_ENVELOPE_BYTES and (part := os.read(descriptor, 65536)):
                parts.append(part)
                total += len(part)
            if total > MAX_ENVELOPE_BYTES:
                raise EnvelopeTooNewError(f"snapshot.json is larger than {MAX_ENVELOPE_BYTES} bytes")
            data = b"".join(parts)
    finally:
        os.close(descriptor)
    return data


def judge(name: str, directory: int, contents: DirectoryContents) -> StoredSnapshot:
    """Read the metadata of a complete snapshot and say what it is: READY, INVALID or UNREADABLE."""
    condition, envelope = EntryCondition.READY, Envelope()
    try:
        envelope = decode_envelope(read_metadata(directory))
    except EnvelopeInvalidError as error:
        condition = EntryCondition.INVALID
        contents.problems.append(str(error))
    except EnvelopeTooNewError as error:
        condition = EntryCondition.UNREADABLE
        contents.problems.append(str(error))
    except OSError as error:
        condition = EntryCondition.UNREADABLE
        contents.problems.append(f"{METADATA_FILE} cannot be read: {error.strerror}")
    else:
        condition = _judge_data(name, envelope, contents)
    return describe(name, contents, envelope, condition=condition, target_name=name)


def unreadable(name: str, error: OSError, *, target_name: str, pending: bool) -> StoredSnapshot:
    """Return the entry for a directory that could not be read at all."""
    return StoredSnapshot(
        name=name,
        snapshot_id="",
        condition=EntryCondition.PENDING if pending else EntryCondition.UNREADABLE,
        target_name=target_name,
        allocated_bytes=0,
        exclusive_bytes=0,
        apparent_bytes=0,
        problems=(f"the directory cannot be read: {error.strerror}",),
    )


def has_vanished(error: OSError) -> bool:
    """Tell whether an error says that what was to be read is not there, or is no directory any more."""
    return error.errno in _NOT_FOUND


def _judge_data(name: str, envelope: Envelope, contents: DirectoryContents) -> EntryCondition:
    condition = EntryCondition.READY
    if envelope.name != name:
        if envelope.name:
            condition = EntryCondition.INVALID
            contents.problems.append(f"the metadata names another snapshot: {envelope.name[:100]!r}")
        else:
            contents.problems.append("the metadata has no name")
    if not contents.is_complete:
        return EntryCondition.UNREADABLE if condition is EntryCondition.READY else condition
    shortened = shortened_files(envelope, contents.sizes)
    contents.problems.extend(shortened)
    return EntryCondition.INVALID if shortened else condition


def _add_entries(contents: DirectoryContents, directory: int, device: int, path: str) -> None:
    allocated = apparent = shared = 0
    touched = contents.last_touch_at
    sizes = contents.sizes
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                contents.problems.append(f"{path}{entry.name[:100]!r} cannot be read: {error.strerror}")
                contents.is_complete = False
                continue
            mode = status.st_mode
            blocks = status.st_blocks * BLOCK_BYTES
            allocated += blocks
            if stat.S_ISREG(mode):
                apparent += status.st_size
                if status.st_nlink > 1:
                    shared += blocks
                    _add_link(contents, status, blocks)
                if not path:
                    if entry.name == METADATA_FILE:
                        contents.metadata = status
                        touched = max(touched, status.st_mtime)
                        continue
                    sizes[entry.name] = status.st_size
                touched = max(touched, status.st_mtime, status.st_atime)
            else:
                allocated -= _note_special(contents, entry.name, path, status, device)
    contents.allocated_bytes += allocated
    contents.exclusive_bytes += allocated - shared
    contents.apparent_bytes += apparent
    contents.last_touch_at = touched


def _note_special(contents: DirectoryContents, name: str, path: str, status: os.stat_result, device: int) -> int:
    """Take note of what is no regular file; return the bytes of it that do not belong to the snapshot."""
    if not path and name == METADATA_FILE:
        contents.metadata_is_foreign = True
        return 0
    if stat.S_ISDIR(status.st_mode):
        if status.st_dev != device:
            contents.problems.append(f"another file system is mounted at {path}{name[:100]!r}; it is left alone")
            contents.is_complete = False
            return status.st_blocks * BLOCK_BYTES
        contents.nested = contents.nested or []
        contents.nested.append(path + name)
        return 0
    kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "a special file"
    contents.problems.append(f"{path}{name[:100]!r} is {kind}, which is not followed")
    return 0


def _add_link(contents: DirectoryContents, status: os.stat_result, blocks: int) -> None:
    contents.links = contents.links or {}
    key = (status.st_dev, status.st_ino)
    known = contents.links.get(key)
    if known is not None:
        # Counted once: the second link to the same file occupies nothing.
        contents.allocated_bytes -= blocks
        contents.exclusive_bytes -= blocks
    links_here = known.links_here + 1 if known is not None else 1
    contents.links[key] = LinkedFile(
        device=key[0], inode=key[1], link_count=status.st_nlink, links_here=links_here, allocated_bytes=blocks
    )


def _add_nested(contents: DirectoryContents, directory: int, device: int) -> None:
    pending = contents.nested or []
    seen = 0
    while pending:
        path = pending.pop()
        seen += 1
        if seen > MAX_NESTED_DIRECTORIES:
            contents.problems.append(f"more than {MAX_NESTED_DIRECTORIES} directories; sizes are incomplete")
            return
        try:
            descriptor = _open_below(directory, path)
        except OSError as error:
            contents.problems.append(f"{path[:100]!r} cannot be read: {error.strerror}")
            contents.is_complete = False
            continue
        try:
            if os.fstat(descriptor).st_dev == device:
                _add_entries(contents, descriptor, device, path + "/")
        except OSError as error:
            contents.problems.append(f"{path[:100]!r} cannot be read: {error.strerror}")
            contents.is_complete = False
        finally:
            os.close(descriptor)


def _open_below(directory: int, path: str) -> int:
    """Open a nested directory component by component, so that no link swapped in between leads outside."""
    current = os.dup(directory)
    for component in path.split("/"):
        try:
            following = os.open(component, OPEN_DIRECTORY, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current
