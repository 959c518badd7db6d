"""Looks at the directory store: which entries there are, what changed since a mark, what is somebody else's."""

import contextlib
import os
import re
import time
from array import array
from collections.abc import Iterable

from agent.snapshots.errors import quoted
from agent.snapshots.names import is_readable_name, is_store_name
from agent.snapshots.stores.contract import (
    ChangeMark,
    Changes,
    EntryCondition,
    ForeignEntries,
    Inventory,
    StoredSnapshot,
)
from agent.snapshots.stores.digests import DIGEST_MASK
from agent.snapshots.stores.envelope import Envelope, EnvelopeInvalidError, EnvelopeTooNewError, decode_envelope
from agent.snapshots.stores.identity import is_own_file
from agent.snapshots.stores.scan import (
    OPEN_DIRECTORY,
    DirectoryContents,
    describe,
    has_vanished,
    judge,
    read_contents,
    read_metadata,
    unreadable,
)
from agent.snapshots.stores.trash import TRASH_DIRECTORY

PENDING_PREFIX = ".pending-"
MAX_FOREIGN_EXAMPLES = 20
# A directory changed within the resolution of its time stamps could change again without showing it.
COARSE_STAMP_NANOSECONDS = 2_000_000_000
FINE_STAMP_NANOSECONDS = 50_000_000
_PENDING_NAME = re.compile(re.escape(PENDING_PREFIX) + r"[A-Za-z0-9._~+@=,-]*", re.ASCII)


class DirectoryMark(ChangeMark):
    """Signatures of the root and of each directory in it; 0 stands for one that must be looked at again.

    `signatures[n]` is that of `names[n]`: a dictionary would take five times the room.
    """

    __slots__ = ("names", "root", "signatures")

    def __init__(self, root: int, names: list[str], signatures: "array[int]") -> None:
        self.root = root
        self.names = names
        self.signatures = signatures


class StoreScan:
    """One look at an open store. Raises OSError if the store itself cannot be read."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._device = os.fstat(root).st_dev
        self._now_ns = time.time_ns()
        self._recent_ns = self._now_ns - COARSE_STAMP_NANOSECONDS
        self._foreign_count = 0
        self._foreign_examples: list[str] = []

    def everything(self) -> Inventory:
        """Read all entries."""
        root_signature = self._signature(os.fstat(self._root))
        names: list[str] = []
        signatures = array("q")
        entries = []
        for name in self._directory_names():
            entry, signature = self._read(name)
            if signature is not None:
                names.append(name)
                signatures.append(signature)
            if entry is not None:
                entries.append(entry)
            elif signature is not None:
                self._note_foreign(name, "a directory without snapshot.json, or a mount point")
        return Inventory(
            entries=tuple(entries),
            foreign=self._foreign(),
            mark=DirectoryMark(root_signature, names, signatures),
        )

    def changes(self, mark: DirectoryMark) -> Changes:
        """Compare one `stat` of each directory with the mark, and list again only when the root has changed."""
        root_signature = self._signature(os.fstat(self._root))
        known: Iterable[tuple[str, int]] = zip(mark.names, mark.signatures, strict=True)
        gone: set[str] = set()
        if root_signature != mark.root or root_signature == 0:
            known, gone = self._listed_again(mark)
        names: list[str] = []
        signatures = array("q")
        changed = []
        root, stat, signature_of = self._root, os.stat, self._signature
        for name, before in known:
            try:
                signature = signature_of(stat(name, dir_fd=root, follow_symlinks=False))
            except FileNotFoundError:
                gone.add(name)
                continue
            except OSError:
                # One directory that cannot be looked at is its own problem, to be read and told as such.
                signature = 0
            names.append(name)
            signatures.append(signature)
            if not signature or signature != before:
                changed.append(name)
        new_mark = DirectoryMark(root_signature, names, signatures)
        return Changes(changed=frozenset(changed), gone=frozenset(gone), mark=new_mark)

    def _listed_again(self, mark: DirectoryMark) -> tuple[list[tuple[str, int]], set[str]]:
        """Return all names there are now with the signature known of each, 0 for new ones; and those that went."""
        known = {name: (name, signature) for name, signature in zip(mark.names, mark.signatures, strict=True)}
        # The text known already, not the new one: there is to be one of each name.
        listed = [known.pop(name, (name, 0)) for name in self._directory_names()]
        return listed, set(known)

    def entry(self, name: str) -> StoredSnapshot | None:
        """Read one entry; None if it is not there or no snapshot."""
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[StoredSnapshot | None, int | None]:
        """Return the entry, None for what is no snapshot, and the signature of the directory, None if it is gone."""
        is_pending = name.startswith(PENDING_PREFIX)
        try:
            directory = os.open(name, OPEN_DIRECTORY, dir_fd=self._root)
        except OSError as error:
            if has_vanished(error):
                return None, None
            return unreadable(name, error, target_name=_target_of(name), pending=is_pending), 0
        try:
            status = os.fstat(directory)
            if status.st_dev != self._device:
                return None, 0
            signature = self._signature(status)
            contents = read_contents(directory, status)
            if is_pending:
                return _pending(name, directory, contents), signature
            if contents.metadata is None:
                return None, signature
            return judge(name, directory, contents), signature
        except OSError as error:
            return unreadable(name, error, target_name=_target_of(name), pending=is_pending), 0
        finally:
            os.close(directory)

    def _directory_names(self) -> list[str]:
        names = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                name = entry.name
                if is_own_file(name) or name == TRASH_DIRECTORY:
                    continue
                if entry.is_dir(follow_symlinks=False) and is_entry_name(name):
                    names.append(name)
                else:
                    self._note_foreign(name, "a symbolic link" if entry.is_symlink() else "not a snapshot's name")
        return names

    def _signature(self, status: os.stat_result) -> int:
        # Whatever changes a directory's entries sets its change time, which nobody can set back.
        changed_ns = status.st_ctime_ns
        if changed_ns > self._recent_ns and self._may_change_unseen(changed_ns):
            return 0
        return hash((status.st_dev, status.st_ino, status.st_mtime_ns, changed_ns)) & DIGEST_MASK

    def _may_change_unseen(self, changed_ns: int) -> bool:
        is_coarse = changed_ns % 1_000_000_000 == 0
        return is_coarse or changed_ns > self._now_ns - FINE_STAMP_NANOSECONDS

    def _note_foreign(self, name: str, what: str) -> None:
        self._foreign_count += 1
        if len(self._foreign_examples) < MAX_FOREIGN_EXAMPLES:
            self._foreign_examples.append(f"{quoted(name)} ({what})")

    def _foreign(self) -> ForeignEntries:
        return ForeignEntries(count=self._foreign_count, examples=tuple(sorted(self._foreign_examples)))


def is_entry_name(name: str) -> bool:
    """Tell whether a directory of this name can be an entry: a snapshot, or one that is being written."""
    return is_store_name(name) or _PENDING_NAME.fullmatch(name) is not None


def _target_of(name: str) -> str:
    if not name.startswith(PENDING_PREFIX):
        return name
    target = name.removeprefix(PENDING_PREFIX)
    return target if is_store_name(target) else ""


def _pending(name: str, directory: int, contents: DirectoryContents) -> StoredSnapshot:
    """Describe what is being written: whose it will be says its metadata, or before that is there, its own name."""
    envelope = Envelope()
    if contents.metadata is not None:
        with contextlib.suppress(OSError, EnvelopeInvalidError, EnvelopeTooNewError):
            envelope = decode_envelope(read_metadata(directory))
    target_name = envelope.name if is_readable_name(envelope.name) else _target_of(name)
    return describe(name, contents, envelope, condition=EntryCondition.PENDING, target_name=target_name)
