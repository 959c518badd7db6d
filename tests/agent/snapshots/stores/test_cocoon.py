"""The engine's store: its command line as it was recorded, and everything that can be wrong with its answers."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.snapshots.errors import InvalidNameError, SnapshotChangedError, StoreFault, StoreUnavailableError
from agent.snapshots.stores import engine_command
from agent.snapshots.stores.cocoon import RECORD_FILE, CocoonStore
from agent.snapshots.stores.contract import EntryCondition, LedgerIdentity, Store, StoredSnapshot
from agent.snapshots.stores.engine_command import EngineAnswer, EngineRemoval, EngineSettings
from agent.snapshots.stores.removal_record import RemovalRecord, RunningRemoval
from tests.agent.snapshots.stores.harness import NEW_LEDGER, EngineHarness, tree
from tests.support.waiting import wait_for

Closing = Callable[[Store], Store]
COLOURED = "\x1b[90m30 Nov 26 21:31 UTC\x1b[0m \x1b[33mWRN\x1b[0m \x1b[1mdisk slow\x1b[0m\n"


@pytest.fixture(params=["old", "new"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> EngineHarness:
    return EngineHarness(tmp_path, version=request.param)


@pytest.fixture
def store(engine: EngineHarness, closing: Closing) -> CocoonStore:
    opened = engine.make()
    closing(opened)
    opened.open(NEW_LEDGER)
    return opened


def test_the_command_lines_are_the_recorded_ones(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("vk-a-b")
    (entry,) = store.scan_all().entries
    store.in_use_ids()
    store.remove(entry)
    assert engine.settings.command("x")[1:] == [
        "--root-dir",
        str(engine.disk),
        "--run-dir",
        engine.settings.run_dir,
        "--log-dir",
        engine.settings.log_dir,
        "x",
    ]
    calls = engine.calls()[1:]
    listing = ["snapshot", "list", "-o", "json"]
    assert calls == [listing, ["vm", "list", "-o", "json"], listing, ["snapshot", "rm", "--", entry.snapshot_id]]
    assert len(entry.snapshot_id) == 26


def test_nothing_but_listing_and_single_removals_is_ever_asked_of_the_engine() -> None:
    source = "".join(
        Path(module.__file__ or "").read_text(encoding="utf-8")
        for module in (engine_command, sys.modules[CocoonStore.__module__])
    )
    assert '"gc"' not in source


@pytest.mark.parametrize("command", ["snapshot list", "vm list"])
@pytest.mark.parametrize(
    ("behaviour", "fault", "says"),
    [
        (
            {"status": 1, "errors": COLOURED + "Error: list: read index: input/output error\n"},
            "ENGINE_FAILED",
            "Error: list",
        ),
        ({"status": 2, "errors": ""}, "ENGINE_FAILED", "it said nothing"),
        ({"status": 1, "errors": COLOURED}, "ENGINE_FAILED", "disk slow"),
        ({"output": ""}, "ENGINE_ANSWER_UNREADABLE", "cannot be understood"),
        ({"output": "[{"}, "ENGINE_ANSWER_UNREADABLE", "cannot be understood"),
        ({"output": '{"a": 1}'}, "ENGINE_ANSWER_UNREADABLE", "not a list"),
        ({"output": "[1]"}, "ENGINE_ANSWER_UNREADABLE", "not a list"),
        ({"output": "no snapshots found"}, "ENGINE_ANSWER_UNREADABLE", "cannot be understood"),
    ],
)
def test_an_error_of_the_engine_is_not_an_empty_list(
    engine: EngineHarness, store: CocoonStore, command: str, behaviour: dict[str, object], fault: str, says: str
) -> None:
    engine.add("vk-a-b")
    engine.behave({command: behaviour})
    with pytest.raises(StoreUnavailableError, match=says) as caught:
        store.scan_all() if command == "snapshot list" else store.in_use_ids()
    assert caught.value.fault.value == fault
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("output", ["No snapshots found.\n", "[]", "null"])
def test_no_snapshots_is_believed_only_when_the_data_directory_is_empty_too(
    engine: EngineHarness, store: CocoonStore, output: str
) -> None:
    """F5: the engine says so of a root that it has just created itself."""
    engine.behave({"snapshot list": {"output": output}})
    assert store.scan_all().entries == ()
    engine.add("vk-a-b")
    with pytest.raises(StoreUnavailableError, match="not an empty list"):
        store.scan_all()


@pytest.mark.parametrize(
    ("record", "fault"),
    [({"name": "vk-a-b"}, StoreFault.ENGINE_ANSWER_UNREADABLE), ({"id": 5}, StoreFault.ENGINE_ANSWER_UNREADABLE)],
)
def test_a_list_with_a_snapshot_that_cannot_be_told_is_no_list(
    engine: EngineHarness, store: CocoonStore, record: dict[str, object], fault: StoreFault
) -> None:
    engine.behave({"snapshot list": {"output": json.dumps([record])}})
    with pytest.raises(StoreUnavailableError) as caught:
        store.scan_all()
    assert caught.value.fault is fault


def test_an_engine_that_does_not_answer_is_given_up_with_its_children(
    engine: EngineHarness, store: CocoonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_command, "READ_TIMEOUT_SECONDS", 0.2)
    engine.behave({"snapshot list": {"hang": True}})
    with pytest.raises(StoreUnavailableError) as caught:
        store.scan_all()
    assert caught.value.fault is StoreFault.ENGINE_TIMEOUT


def test_a_missing_engine_is_named(tmp_path: Path, closing: Closing) -> None:
    harness = EngineHarness(tmp_path, program=str(tmp_path / "no-such-program"))
    store = harness.make()
    closing(store)
    store.open(NEW_LEDGER)
    with pytest.raises(StoreUnavailableError, match="VK_COCOON_BIN") as caught:
        store.scan_all()
    assert caught.value.fault is StoreFault.ENGINE_MISSING


def test_a_missing_root_is_not_created_by_asking(engine: EngineHarness) -> None:
    """F5."""
    engine.disk.rmdir()
    with pytest.raises(StoreUnavailableError) as caught:
        engine.make().open(NEW_LEDGER)
    assert caught.value.fault is StoreFault.MISSING
    assert not engine.disk.exists()
    assert engine.calls() == []


@pytest.mark.parametrize(
    ("vms", "ids"),
    [
        ([{"id": "v1"}], set()),
        ([{"id": "v1", "snapshot_ids": None}], set()),
        ([{"id": "v1", "snapshot_ids": {"A": {}, "B": {}}}, {"id": "v2", "snapshot_ids": ["C"]}], {"A", "B", "C"}),
    ],
)
def test_snapshots_created_from_a_vm_that_exists_are_in_use(
    engine: EngineHarness, store: CocoonStore, vms: list[object], ids: set[str]
) -> None:
    (engine.control / "vms.json").write_text(json.dumps(vms))
    assert store.in_use_ids() == ids


@pytest.mark.parametrize("odd", ["A", [1], 5, "", False])
def test_unreadable_use_is_not_no_use(engine: EngineHarness, store: CocoonStore, odd: object) -> None:
    (engine.control / "vms.json").write_text(json.dumps([{"id": "v1", "snapshot_ids": odd}]))
    with pytest.raises(StoreUnavailableError):
        store.in_use_ids()


def test_names_of_images_are_read_and_never_removed(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("registry.example/team/image:1")
    (entry,) = store.scan_all().entries
    assert entry.name == "registry.example/team/image:1"
    assert store.verify(entry.name) == entry
    with pytest.raises(InvalidNameError):
        store.remove(entry)


def test_a_snapshot_without_a_name_goes_by_its_id(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("")
    (entry,) = store.scan_all().entries
    assert entry.name == entry.snapshot_id


def test_an_id_that_is_gone_never_reaches_a_snapshot_of_that_name(engine: EngineHarness, store: CocoonStore) -> None:
    """The engine takes ids, names and prefixes alike; a removal by an id must not become one by a name or prefix."""
    engine.add("vk-a-b")
    (entry,) = store.scan_all().entries
    engine.discard("vk-a-b")
    engine.add(entry.snapshot_id)
    assert store.remove(entry).already_gone
    assert [left.name for left in store.scan_all().entries] == [entry.snapshot_id]
    forged = StoredSnapshot("vk-a-b", entry.snapshot_id[:4], EntryCondition.READY, "vk-a-b", 0, 0, 0)
    assert store.remove(forged).already_gone
    assert len(store.scan_all().entries) == 1


def test_a_snapshot_that_got_another_name_is_not_removed(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("vk-a-b")
    (entry,) = store.scan_all().entries
    index = engine.disk / "snapshot" / "db" / "snapshots.json"
    index.write_text(index.read_text().replace("vk-a-b", "vk-a-c"))
    with pytest.raises(SnapshotChangedError):
        store.remove(entry)


def test_a_failed_removal_is_an_error_and_not_a_success(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("vk-a-b")
    (entry,) = store.scan_all().entries
    engine.behave({"snapshot rm": {"status": 1, "errors": "Error: rm: remove data dir: input/output error\n"}})
    with pytest.raises(StoreUnavailableError, match="remove data dir"):
        store.remove(entry)
    assert store.scan_all().entries == (entry,)
    engine.behave({})
    assert not store.remove(entry).already_gone
    assert store.scan_all().entries == ()


def test_a_removal_that_failed_half_way_leaves_nothing_usable(engine: EngineHarness, store: CocoonStore) -> None:
    """Also after other removals and a restart; a removal that failed before it removed anything leaves it usable."""
    for name in ("vk-a-b", "vk-a-c", "vk-a-d"):
        engine.add(name)
    entries = {entry.name: entry for entry in store.scan_all().entries}
    (engine.control / "fail-rm-half-way").touch()
    with pytest.raises(StoreUnavailableError):
        store.remove(entries["vk-a-b"])
    (engine.control / "fail-rm-half-way").unlink()
    engine.behave({"snapshot rm": {"status": 1, "errors": "Error: rm: locked\n"}})
    with pytest.raises(StoreUnavailableError):
        store.remove(entries["vk-a-c"])
    engine.behave({})
    store.remove(entries["vk-a-d"])
    store.close()
    again = engine.make()
    again.open(LedgerIdentity(engine.marker.read_text().strip(), knows_snapshots=True))
    conditions = {entry.name: entry.condition for entry in again.scan_all().entries}
    assert conditions == {"vk-a-b": EntryCondition.INVALID, "vk-a-c": EntryCondition.READY}
    again.resume()
    wait_for(lambda: len(again.scan_all().entries) == 1, 20, what="the removal to be finished")
    assert again.verify("vk-a-c") == entries["vk-a-c"]
    again.close()


def test_a_removal_that_had_not_begun_is_not_finished(engine: EngineHarness) -> None:
    """Killed between record and command: the snapshot is whole, and whether it still goes is decided anew."""
    first = engine.make()
    opening = first.open(NEW_LEDGER)
    engine.add("vk-a-b")
    entry = first.verify("vk-a-b")
    whole = first._fingerprint("vk-a-b", entry.snapshot_id)
    first.close()
    record = RemovalRecord(str(engine.state_dir / RECORD_FILE))
    with record.locked() as descriptor:
        record.write(descriptor, [RunningRemoval(entry.snapshot_id, whole or 0)])
    again = engine.make()
    again.open(LedgerIdentity(opening.store_id, knows_snapshots=True))
    assert again.scan_all().entries == (entry,)
    again.resume()
    wait_for(lambda: record.unfinished() == (), 20, what="the record to be cleared")
    assert again.scan_all().entries == (entry,)
    assert ["snapshot", "rm", "--", entry.snapshot_id] not in engine.calls()
    again.close()


def test_a_snapshot_removed_by_somebody_else_in_that_moment_is_gone(
    engine: EngineHarness, store: CocoonStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.add("vk-a-b")
    (entry,) = store.scan_all().entries

    class Overtaken(EngineRemoval):
        def __init__(self, settings: EngineSettings, snapshot_id: str, *, inherited: int) -> None:
            engine.discard("vk-a-b")
            super().__init__(settings, snapshot_id, inherited=inherited)

    monkeypatch.setattr("agent.snapshots.stores.engine_removals.EngineRemoval", Overtaken)
    store.remove(entry)
    assert store.scan_all().entries == ()


def test_data_that_is_missing_is_invalid_for_one_and_a_missing_disk_for_all(
    engine: EngineHarness, store: CocoonStore
) -> None:
    """F5."""
    engine.add("vk-a-b")
    engine.add("vk-a-c")
    data = engine.data_files("vk-a-b")[0].parent
    data.rename(engine.control / "away")
    conditions = {entry.name: entry.condition for entry in store.scan_all().entries}
    assert conditions == {"vk-a-b": EntryCondition.INVALID, "vk-a-c": EntryCondition.READY}
    data.parent.rename(engine.control / "all-away")
    assert {entry.condition for entry in store.scan_all().entries} == {EntryCondition.UNREADABLE}


def test_nothing_is_asked_while_the_index_stands_still(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("vk-a-b")
    mark = store.scan_all().mark

    def is_quiet() -> bool:
        nonlocal mark
        before = len(engine.calls())
        mark = store.changed_since(mark).mark
        return len(engine.calls()) == before

    assert wait_for(is_quiet, 20, what="a mark that stays")


@contextlib.contextmanager
def killed_during_removal(engine: EngineHarness, opening_id: str, name: str) -> Iterator[int]:
    """Kill a process in the middle of a removal by the engine; give the pid of the engine's command."""
    (engine.control / "hold-rm").touch()
    script = """
        import sys
        from agent.snapshots.stores.cocoon import RECORD_FILE, CocoonStore
        from agent.snapshots.stores.contract import LedgerIdentity
        from agent.snapshots.stores.engine_command import EngineSettings
        program, root, run, log, state, store_id, name = sys.argv[1:]
        store = CocoonStore(EngineSettings(program, root, run, log), state_dir=state)
        store.open(LedgerIdentity(store_id, True))
        store.remove(store.verify(name))
    """
    places = engine.settings
    arguments = [places.program, places.root_dir, places.run_dir, places.log_dir, str(engine.state_dir)]
    agent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script), *arguments, opening_id, name])
    pid_file = engine.control / "rm-pid"
    try:
        pid = int(wait_for(lambda: pid_file.exists() and pid_file.read_text(), 20, what="the removal to begin"))
        agent.kill()
        agent.wait()
        yield pid
    finally:
        agent.kill()
        agent.wait()
        (engine.control / "hold-rm").unlink(missing_ok=True)


def test_the_next_start_waits_for_a_removal_that_outlived_the_agent(engine: EngineHarness) -> None:
    """F27: nothing is listed before the engine's command has ended, and then the truth."""
    first = engine.make()
    opening = first.open(NEW_LEDGER)
    engine.add("vk-a-b")
    engine.add("vk-a-c")
    first.close()
    ledger = LedgerIdentity(opening.store_id, knows_snapshots=True)
    with killed_during_removal(engine, opening.store_id, "vk-a-b") as pid:
        assert os.getpgid(pid) == pid, "a signal to the agent's process group would reach the engine's command"
        calls = engine.calls()
        with pytest.raises(StoreUnavailableError, match=str(pid)) as caught:
            engine.make(wait_for_removal_seconds=0.2).open(ledger)
        assert caught.value.fault is StoreFault.REMOVAL_RUNNING
        assert engine.calls() == calls
        waiting = engine.make()
        threading.Timer(0.3, (engine.control / "hold-rm").unlink).start()
        waiting.open(ledger)
        assert [entry.name for entry in waiting.scan_all().entries] == ["vk-a-c"]
        waiting.resume()
        waiting.close()


def test_a_removal_that_died_half_way_is_finished(engine: EngineHarness) -> None:
    """F27: as after power loss; meanwhile the half snapshot is never listed as usable."""
    first = engine.make()
    opening = first.open(NEW_LEDGER)
    engine.add("vk-a-b")
    engine.add("vk-a-c")
    first.close()
    with killed_during_removal(engine, opening.store_id, "vk-a-b") as pid:
        os.kill(pid, signal.SIGKILL)
    again = engine.make()
    again.open(LedgerIdentity(opening.store_id, knows_snapshots=True))
    entries = {entry.name: entry for entry in again.scan_all().entries}
    assert entries["vk-a-b"].condition is EntryCondition.INVALID
    assert entries["vk-a-b"].problems[0] == "its removal was interrupted"
    again.resume()
    wait_for(lambda: len(again.scan_all().entries) == 1, 20, what="the removal to be finished")
    again.close()
    last = engine.make()
    last.open(LedgerIdentity(opening.store_id, knows_snapshots=True))
    assert [entry.condition for entry in last.scan_all().entries] == [EntryCondition.READY]
    last.close()


def test_the_engines_files_are_never_touched(engine: EngineHarness, store: CocoonStore) -> None:
    engine.add("vk-a-b")
    engine.add_pending()
    (engine.disk / "snapshot" / "localfile" / "somebody's file").write_text("x")
    before = tree(engine.disk)
    inventory = store.scan_all()
    store.changed_since(inventory.mark)
    store.rescan(["vk-a-b"])
    store.verify("vk-a-b")
    store.in_use_ids()
    assert inventory.foreign.count == 1
    assert tree(engine.disk) == before


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ("", "it said nothing"),
        ("Error: a\nmore\n", "Error: a"),
        (COLOURED, "30 Nov 26 21:31 UTC WRN disk slow"),
        ("x" * 1000, "x" * 300),
        ("Error: \x1b[31mred\x1b[0m\x00\x07 bell", "Error: red  bell"),
    ],
)
def test_what_the_engine_complains_of_is_one_plain_line(errors: str, says: str) -> None:
    complaint = EngineAnswer(1, "", errors).complaint()
    assert complaint.replace("  ", " ") == says.replace("  ", " ")
    assert complaint.isprintable()
