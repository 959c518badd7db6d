"""Stores for tests, each with a way to put snapshots into it that does not go through the store."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from agent.snapshots.stores.cocoon import CocoonStore
from agent.snapshots.stores.contract import LedgerIdentity, Store
from agent.snapshots.stores.directory import DirectoryStore
from agent.snapshots.stores.engine_command import EngineSettings
from agent.snapshots.stores.identity import MARKER_FILE

STAND_IN = Path(__file__).with_name("stand_in_cocoon.py")
NEW_LEDGER = LedgerIdentity(store_id=None, knows_snapshots=False)
SMALL_FILES: Mapping[str, bytes] = {"memory-ranges": b"m" * 5000, "cow.raw": b"c" * 100, "state.json": b"{}"}


def envelope(name: str, snapshot_id: str = "id-1", **config: object) -> bytes:
    """Return the bytes of a `snapshot.json`. Sizes are so small that the usual small files are not too short."""
    fields = {"id": snapshot_id, "name": name, "image": "img:1", "cpu": 2, "memory": 4096, "storage": 64, **config}
    return json.dumps({"version": 1, "config": {"hypervisor": "cloud-hypervisor", "nics": 1, **fields}}).encode()


def write_snapshot(
    root: Path, name: str, files: Mapping[str, bytes] = SMALL_FILES, *, metadata: bytes | None = None
) -> Path:
    """Put a snapshot into a directory store the way a writer does: `.pending-*`, then a rename."""
    pending = root / f".pending-{name}"
    pending.mkdir()
    for file_name, content in files.items():
        (pending / file_name).write_bytes(content)
    (pending / "snapshot.json").write_bytes(envelope(name, uuid.uuid4().hex) if metadata is None else metadata)
    return pending.rename(root / name)


class StoreHarness(Protocol):
    """One kind of store, with its own files. `disk` is the directory whose unmounting is played by renaming it."""

    disk: Path
    marker: Path

    def make(self) -> Store:
        """Return a new store object on the same files."""
        ...

    def add(self, name: str, files: Mapping[str, bytes] = SMALL_FILES, **config: object) -> None:
        """Put a snapshot into the store as its writers do."""
        ...

    def add_pending(self) -> None:
        """Put something into the store that is still being written."""
        ...

    def data_files(self, name: str) -> list[Path]:
        """Return where the data of a snapshot lie."""
        ...

    def discard(self, name: str) -> None:
        """Remove a snapshot as somebody else would."""
        ...


class DirectoryHarness:
    """The directory store."""

    def __init__(self, base: Path) -> None:
        self.cocoon_root = base / "cocoon"
        self.cocoon_root.mkdir()
        self.disk = self.cocoon_root / "snapshots"
        self.marker = self.disk / MARKER_FILE

    def make(self) -> DirectoryStore:
        """See StoreHarness."""
        return DirectoryStore(str(self.disk), cocoon_root_dir=str(self.cocoon_root))

    def add(self, name: str, files: Mapping[str, bytes] = SMALL_FILES, **config: object) -> None:
        """See StoreHarness."""
        write_snapshot(self.disk, name, files, metadata=envelope(name, uuid.uuid4().hex, **config))

    def add_pending(self) -> None:
        """See StoreHarness."""
        (self.disk / ".pending-vk-new-0").mkdir()
        (self.disk / ".pending-vk-new-0" / "memory-ranges").write_bytes(b"half")

    def data_files(self, name: str) -> list[Path]:
        """See StoreHarness."""
        return sorted(path for path in (self.disk / name).iterdir() if path.name != "snapshot.json")

    def discard(self, name: str) -> None:
        """See StoreHarness."""
        shutil.rmtree(self.disk / name)


class EngineHarness:
    """The engine's store, with the stand-in of a version, or with a real program."""

    def __init__(self, base: Path, *, version: str = "", program: str = "") -> None:
        self.disk = base / "cocoon"
        self.disk.mkdir()
        self.control = base / "control"
        self.control.mkdir()
        self.state_dir = base / "state"
        self.state_dir.mkdir()
        self.marker = self.disk / "snapshot" / MARKER_FILE
        self.is_real = bool(program)
        self.settings = EngineSettings(
            program=program or self._launcher(base, version),
            root_dir=str(self.disk),
            run_dir=str(base / "run"),
            log_dir=str(base / "log"),
        )

    def make(self, **options: Any) -> CocoonStore:  # noqa: ANN401 (passed on as it is)
        """See StoreHarness."""
        return CocoonStore(self.settings, state_dir=str(self.state_dir), **options)

    def add(self, name: str, files: Mapping[str, bytes] = SMALL_FILES, **config: object) -> None:
        """See StoreHarness."""
        archive = self.control / "archive.tar"
        with tarfile.open(archive, "w") as packed:
            for file_name, content in {"snapshot.json": envelope(name, "id-1", **config), **files}.items():
                member = tarfile.TarInfo(file_name)
                member.size = len(content)
                packed.addfile(member, io.BytesIO(content))
        self.run("snapshot", "import", "--name", name, str(archive))

    def add_pending(self) -> None:
        """See StoreHarness."""
        directory = self.disk / "snapshot" / "localfile" / ("P" * 26)
        directory.mkdir(parents=True)
        (directory / "memory-ranges").write_bytes(b"half")

    def data_files(self, name: str) -> list[Path]:
        """See StoreHarness."""
        return sorted((self.disk / "snapshot" / "localfile" / self.id_of(name)).iterdir())

    def discard(self, name: str) -> None:
        """See StoreHarness."""
        self.run("snapshot", "rm", "--", self.id_of(name))

    def id_of(self, name: str) -> str:
        """Ask the engine for the id of a snapshot."""
        return str(json.loads(self.run("snapshot", "inspect", name).stdout)["id"])

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        """Run the engine as its other users do."""
        return subprocess.run(self.settings.command(*arguments), check=True, capture_output=True)

    def behave(self, behaviour: Mapping[str, object]) -> None:
        """Make the stand-in answer some commands otherwise."""
        (self.control / "behaviour.json").write_text(json.dumps(behaviour))

    def calls(self) -> list[list[str]]:
        """Return the arguments of every call of the stand-in so far, without the directories."""
        path = self.control / "calls"
        return [json.loads(line)[6:] for line in path.read_text().splitlines()] if path.exists() else []

    def _launcher(self, base: Path, version: str) -> str:
        launcher = base / "cocoon-program"
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{STAND_IN}" "{self.control}" {version} "$@"\n')
        launcher.chmod(0o755)
        return str(launcher)


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    """Return every path below a directory with its inode and size, to see that nothing was touched."""
    found = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = Path(parent) / name
            status = path.lstat()
            found[str(path.relative_to(directory))] = (status.st_ino, status.st_size if path.is_file() else 0)
    return found
