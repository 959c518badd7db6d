"""A stand-in for the cocoon engine's program, for hosts without one: behaves as was recorded of two real versions.

Run as `stand_in_cocoon.py CONTROL_DIR VERSION [the engine's arguments]`. It keeps `<root>/snapshot/db/snapshots.json`
and `<root>/snapshot/localfile/<id>/` as the engine does, creates a missing root, says `No snapshots found.` with status
0, writes coloured log lines to standard error, and resolves references as ids, names, or id prefixes of at least three
characters. `new` adds `size` and `last_accessed_at`, and answers `[]` when there is nothing.

In CONTROL_DIR: `calls` gets a JSON line of each call's arguments; `behaviour.json` maps "snapshot list" and the like to
{"status", "output", "errors"} to answer instead, or {"hang": true}; while `hold-rm` exists, a removal waits half-way;
while `fail-rm-half-way` exists, it fails there.
"""

import argparse
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import sys
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

HIDDEN = ("pending", "data_dir", "image_blob_ids")


class Engine:
    """The index and the data below one root."""

    def __init__(self, root: Path, version: str) -> None:
        self.version = version
        self.root = root
        self.data = root / "snapshot" / "localfile"
        self.index = root / "snapshot" / "db" / "snapshots.json"
        self.data.mkdir(parents=True, exist_ok=True)
        self.index.parent.mkdir(parents=True, exist_ok=True)
        self._lock = (self.index.parent / "snapshots.lock").open("w")

    def load(self) -> dict[str, Any]:
        """Read the index under its lock."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            return json.loads(self.index.read_text()) if self.index.exists() else {"snapshots": {}, "names": {}}
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def store(self, content: dict[str, Any]) -> None:
        """Replace the index."""
        temporary = self.index.with_name(".tmp-index")
        temporary.write_text(json.dumps(content))
        temporary.rename(self.index)

    def resolve(self, reference: str) -> str | None:
        """Return the id an id, a name, or an unambiguous id prefix stands for."""
        content = self.load()
        if reference in content["snapshots"]:
            return reference
        if reference in content["names"]:
            return str(content["names"][reference])
        matches = [known for known in content["snapshots"] if len(reference) >= 3 and known.startswith(reference)]
        return matches[0] if len(matches) == 1 else None

    def shown(self) -> list[dict[str, Any]]:
        """Return what a list shows: everything that is not pending, oldest first."""
        records = [record for record in self.load()["snapshots"].values() if not record.get("pending")]
        shown = [{key: value for key, value in record.items() if key not in HIDDEN} for record in records]
        if self.version == "new":
            for record in shown:
                record["size"] = 0
                # A removal that runs at the same time takes files away.
                with contextlib.suppress(FileNotFoundError):
                    files = (self.data / record["id"]).glob("**/*")
                    record["size"] = sum(file.stat().st_size for file in files if file.is_file())
                record["last_accessed_at"] = record["created_at"]
        return sorted(shown, key=lambda record: record["created_at"])

    def remove(self, references: list[str], control: Path) -> None:
        """Remove data, then the index entry, of each; resolve all of them first."""
        ids = [self.resolve(reference) for reference in references]
        for reference, snapshot_id in zip(references, ids, strict=True):
            if snapshot_id is None:
                fail(f'rm: resolve "{reference}": snapshot not found')
        for snapshot_id in ids:
            self._remove_one(str(snapshot_id), control)
            log(f"deleted: {snapshot_id}", "cmd.snapshot.rm")

    def _remove_one(self, snapshot_id: str, control: Path) -> None:
        directory = self.data / snapshot_id
        for file in sorted(directory.iterdir())[:1] if directory.exists() else []:
            file.unlink()
        (control / "rm-pid").write_text(str(os.getpid()))
        while (control / "hold-rm").exists():
            time.sleep(0.01)
        if (control / "fail-rm-half-way").exists():
            fail(f"rm: remove data dir {snapshot_id}: input/output error")
        shutil.rmtree(directory, ignore_errors=True)
        content = self.load()
        record = content["snapshots"].pop(snapshot_id)
        content["names"].pop(record.get("name", ""), None)
        self.store(content)

    def import_archive(self, archive: str, name: str) -> None:
        """Unpack an exported snapshot under a new id."""
        snapshot_id = base32_id()
        directory = self.data / snapshot_id
        directory.mkdir()
        with tarfile.open(archive) as packed:
            packed.extractall(directory, filter="data")
        config = json.loads((directory / "snapshot.json").read_text())["config"]
        (directory / "snapshot.json").unlink()
        config.update(id=snapshot_id, name=name or config["name"])
        content = self.load()
        if config["name"] in content["names"]:
            fail(f'import: snapshot name "{config["name"]}" already in use')
        created_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "123Z"
        content["snapshots"][snapshot_id] = {**config, "created_at": created_at, "data_dir": str(directory)}
        if config["name"]:
            content["names"][config["name"]] = snapshot_id
        self.store(content)
        log(f"snapshot imported: {snapshot_id}", "cmd.snapshot.import")


def base32_id() -> str:
    """Make an id as the engine does: 26 characters of capitals and digits."""
    return "".join(secrets.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") for _ in range(26))


def log(message: str, function: str) -> None:
    """Write a coloured log line to standard error."""
    stamp = datetime.now(UTC).strftime("%d %b %y %H:%M UTC")
    line = f"\x1b[90m{stamp}\x1b[0m \x1b[32mINF\x1b[0m \x1b[1m{message}\x1b[0m \x1b[36mfunc=\x1b[0m{function}"
    print(line, file=sys.stderr, flush=True)


def fail(message: str) -> NoReturn:
    """End as the engine does on an error."""
    print(f"Error: {message}", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Answer one call."""
    control, version = Path(sys.argv[1]), sys.argv[2]
    with (control / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[3:]) + "\n")
    parser = argparse.ArgumentParser()
    for directory in ("--root-dir", "--run-dir", "--log-dir"):
        parser.add_argument(directory, required=True, type=Path)
    parser.add_argument("group")
    parser.add_argument("action")
    parser.add_argument("-o", dest="form", default="table")
    parser.add_argument("--name", default="")
    parser.add_argument("references", nargs="*")
    call = parser.parse_intermixed_args(sys.argv[3:])
    behave(control, f"{call.group} {call.action}")
    engine = Engine(call.root_dir, version)
    answer(engine, control, call)


def behave(control: Path, command: str) -> None:
    """Do what the test asks for instead, if it asks for something."""
    scripted = control / "behaviour.json"
    behaviour = json.loads(scripted.read_text()).get(command) if scripted.exists() else None
    if behaviour is None:
        return
    while behaviour.get("hang"):
        time.sleep(0.05)
    sys.stdout.write(behaviour.get("output", ""))
    sys.stderr.write(behaviour.get("errors", ""))
    sys.exit(behaviour.get("status", 0))


def answer(engine: Engine, control: Path, call: argparse.Namespace) -> None:
    """Carry out a command."""
    command = f"{call.group} {call.action}"
    if command == "snapshot list":
        shown = engine.shown()
        print(json.dumps(shown, indent=2) if shown or engine.version == "new" else "No snapshots found.")
    elif command == "snapshot inspect":
        found = [record for record in engine.shown() if record["id"] == engine.resolve(call.references[0])]
        print(json.dumps(found[0], indent=2)) if found else fail("inspect: snapshot not found")
    elif command == "snapshot rm":
        engine.remove(call.references, control)
    elif command == "snapshot import":
        engine.import_archive(call.references[0], call.name)
    elif command == "vm list":
        vms = control / "vms.json"
        print(vms.read_text() if vms.exists() else "No VMs found.")
    else:
        fail(f"unknown command {command!r}")


if __name__ == "__main__":
    main()
