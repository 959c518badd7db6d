"""Where the engine keeps snapshots, read only: sizes of their data, and a mark that moves when its index does.

Nothing here is written and nothing is concluded from the index's content: that is asked of the engine's command.
"""

import os
import time

import msgspec

from agent.snapshots.stores.contract import EntryCondition, StoredSnapshot
from agent.snapshots.stores.envelope import Envelope, shortened_files
from agent.snapshots.stores.scan import OPEN_DIRECTORY, DirectoryContents, describe, has_vanished, read_contents

SNAPSHOT_DIRECTORY = "snapshot"
DATA_DIRECTORY = "localfile"
INDEX_DIRECTORY = "db"
RECENT_NANOSECONDS = 2_000_000_000


class EngineData:
    """The engine's data directory below an open `<root>/snapshot`. Raises OSError when it cannot be listed.

    Attributes:
        directory_names: Directories in it: ids of snapshots, complete or being written. A missing one has none.
        other_names: Whatever else lies there.
    """

    def __init__(self, snapshot_directory: int) -> None:
        self._parent = snapshot_directory
        self.directory_names: set[str] = set()
        self.other_names: list[str] = []
        try:
            data = os.open(DATA_DIRECTORY, OPEN_DIRECTORY, dir_fd=snapshot_directory)
        except FileNotFoundError:
            return
        try:
            with os.scandir(data) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        self.directory_names.add(entry.name)
                    else:
                        self.other_names.append(entry.name)
        finally:
            os.close(data)

    def contents(self, snapshot_id: str) -> DirectoryContents:
        """Read the sizes of one snapshot's data. Raises OSError."""
        data = os.open(DATA_DIRECTORY, OPEN_DIRECTORY, dir_fd=self._parent)
        try:
            directory = os.open(snapshot_id, OPEN_DIRECTORY, dir_fd=data)
        finally:
            os.close(data)
        try:
            return read_contents(directory, os.fstat(directory))
        finally:
            os.close(directory)


def fingerprint(data: EngineData, snapshot_id: str) -> int:
    """Return a number that differs as soon as the removal of a snapshot has removed anything. Raises OSError."""
    contents = DirectoryContents()
    if snapshot_id in data.directory_names:
        contents = data.contents(snapshot_id)
    return _fingerprint(contents)


def describe_record(
    name: str, envelope: Envelope, data: EngineData, *, whole_fingerprint: int | None
) -> StoredSnapshot:
    """Join what the engine lists with the data on the disk.

    `whole_fingerprint` is that of the data before their removal was begun, None when it was not.
    """
    condition, contents = EntryCondition.READY, DirectoryContents()
    is_there = envelope.snapshot_id in data.directory_names
    try:
        if is_there:
            contents = data.contents(envelope.snapshot_id)
    except OSError as error:
        is_there = not has_vanished(error)
        contents.problems.append(f"the data directory cannot be read: {error.strerror}")
        condition = EntryCondition.UNREADABLE
    if not is_there:
        # With every data directory missing it is the disk that is missing.
        condition = EntryCondition.INVALID if data.directory_names else EntryCondition.UNREADABLE
        contents.problems.append("the engine lists it and its data directory is missing")
    elif condition is EntryCondition.READY:
        shortened = shortened_files(envelope, contents.sizes)
        contents.problems.extend(shortened)
        if not contents.is_complete:
            condition = EntryCondition.UNREADABLE
        elif shortened:
            condition = EntryCondition.INVALID
    if whole_fingerprint is not None and _fingerprint(contents) != whole_fingerprint:
        condition = EntryCondition.INVALID
        contents.problems.insert(0, "its removal was interrupted")
    return _with_version(describe(name, contents, envelope, condition=condition, target_name=name))


def describe_unlisted(snapshot_id: str, data: EngineData) -> StoredSnapshot:
    """Describe data that the engine does not list: a snapshot being written or imported, whose name is not known."""
    contents = DirectoryContents()
    try:
        contents = data.contents(snapshot_id)
    except OSError as error:
        contents.problems.append(f"the data directory cannot be read: {error.strerror}")
    envelope = Envelope(snapshot_id=snapshot_id)
    return _with_version(describe(snapshot_id, contents, envelope, condition=EntryCondition.PENDING, target_name=""))


def index_signature(snapshot_directory: int) -> int:
    """Return a number that differs when the engine's index or its data directory has changed; 0 if it cannot tell.

    It cannot when they changed so recently that another change might leave the same time stamps.
    """
    recent_ns = time.time_ns() - RECENT_NANOSECONDS
    try:
        marks = [_mark(DATA_DIRECTORY, snapshot_directory)]
        index = os.open(INDEX_DIRECTORY, OPEN_DIRECTORY, dir_fd=snapshot_directory)
    except OSError:
        return 0
    try:
        # Which file in it is the index is the engine's business; locks and half-written files are not it.
        names = sorted(name for name in os.listdir(index) if not name.endswith(".lock") and not name.startswith("."))
        marks.extend(_mark(name, index) for name in names)
    except OSError:
        return 0
    finally:
        os.close(index)
    if any(changed_ns > recent_ns for *_, changed_ns in marks):
        return 0
    return hash(tuple(marks)) or 1


def _fingerprint(contents: DirectoryContents) -> int:
    return hash((contents.inode, contents.entries_changed_ns, contents.apparent_bytes))


def _mark(name: str, directory: int) -> tuple[int, ...]:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _with_version(entry: StoredSnapshot) -> StoredSnapshot:
    """The engine gives each snapshot an id of its own and never gives it again, so that is the version."""
    return msgspec.structs.replace(entry, version=entry.snapshot_id)
