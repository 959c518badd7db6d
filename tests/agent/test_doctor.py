"""`doctor`: each check with its remedy, on a stopped agent and beside a running one, and nothing is changed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trustme

from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import LedgerChange, LedgerState
from agent.snapshots.ledger_schema import MIGRATIONS
from devenv.cocoon_programs import AgentProcess
from tests.support import pki

Run = Callable[..., subprocess.CompletedProcess[str]]
Host = Callable[[str], dict[str, str]]
Place = dict[str, str]


@pytest.fixture
def place(tmp_path: Path, fixture_host: Host) -> Place:
    """Variables of an agent that has never been started, with everything where it should be."""
    (tmp_path / "root").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = [each.getsockname()[1] for each in (one, two)]
    return fixture_host("thirty-two-cpus") | {
        "COCOON_ROOT_DIR": str(tmp_path / "root"),
        "COCOON_NODE_STATE_DIR": str(tmp_path / "state"),
        "COCOON_NODE_RUN_DIR": str(tmp_path / "run"),
        "COCOON_NODE_LISTEN": f"127.0.0.1:{ports[0]}",
        "COCOON_NODE_HTTP_LISTEN": f"127.0.0.1:{ports[1]}",
        # The machine's own disk may be as full as it likes.
        "COCOON_NODE_HIGH_WATERMARK_PERCENT": "100",
    }


def findings(run_agent: Run, variables: Place, status: int) -> dict[str, tuple[str, str, str]]:
    """Return status, message and remedy by check; the exit status must be as given."""
    done = run_agent("doctor", "-o", "json", **variables)
    assert done.returncode == status, done.stdout + done.stderr
    found = json.loads(done.stdout)
    for each in found:
        assert bool(each["remedy"]) is (each["status"] in ("warning", "failed")), each
    return {each["check"]: (each["status"], each["message"], each["remedy"]) for each in found}


def state_of(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return what would differ after any change below a directory; reading a file is none."""
    found = {}
    for path in (directory, *sorted(directory.rglob("*"))):
        status = path.lstat()
        found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def test_before_the_first_start_all_is_well(run_agent: Run, place: Place, tmp_path: Path) -> None:
    before = state_of(tmp_path)
    found = findings(run_agent, place, 0)
    assert {status for status, _, _ in found.values()} <= {"ok", "warning", "skipped"}
    assert {name for name, (status, _, _) in found.items() if status == "warning"} <= {"disk", "inodes", "owner-sync"}
    assert set(found) == {
        "agent", "node-name", "clock", "host", "hugepages", "tls", "listen", "http-listen", "state-dir", "ledger",
        "store", "disk", "inodes", "engine", "owner-sync",
    }  # fmt: skip
    assert state_of(tmp_path) == before


def test_beside_a_running_agent(run_agent: Run, agent_process: Callable[..., AgentProcess], place: Place) -> None:
    agent = agent_process(place, "host-1")
    before = state_of(Path(place["COCOON_NODE_STATE_DIR"])), state_of(Path(place["COCOON_ROOT_DIR"]))
    found = findings(run_agent, place, 0)
    assert found["agent"][:2] == ("ok", "it runs and is ready")
    assert found["process"][1].startswith(f"process {agent.process.pid},")
    assert found["ledger"][1].startswith("in use by the running agent")
    assert found["listen"][:2] == ("ok", f"{place['COCOON_NODE_LISTEN']} is served")
    assert found["http-listen"][0] == "ok"
    assert found["store"][0] == "ok"
    assert found["owner-sync"][0] == "warning"
    assert "since its start" in found["owner-sync"][1]
    after = state_of(Path(place["COCOON_NODE_STATE_DIR"])), state_of(Path(place["COCOON_ROOT_DIR"]))
    assert after == before
    assert agent.process.running


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_on_a_stopped_agent(
    run_agent: Run, agent_process: Callable[..., AgentProcess], place: Place, how: str, tmp_path: Path
) -> None:
    """After a kill the ledger's log is left, and finishing it is the next start's business."""
    agent = agent_process(place, "host-1")
    if how == "kill":
        agent.process.kill()
    else:
        agent.stop()
    before = state_of(tmp_path)
    found = findings(run_agent, place, 0)
    assert found["agent"][0] == "skipped"
    assert found["ledger"][1].startswith("whole, schema ")
    assert found["store"][1].endswith(", matched")
    assert found["listen"][1].endswith(" is free")
    assert state_of(tmp_path) == before


def ledger_with(place: Place, **fields: object) -> None:
    with closing(Ledger(place["COCOON_NODE_STATE_DIR"])) as ledger:
        ledger.open()
        ledger.commit(LedgerChange(state=LedgerState(**fields)))  # type: ignore[arg-type]  # the table's own values


def newer_ledger(place: Place) -> None:
    with closing(Ledger(place["COCOON_NODE_STATE_DIR"], (*MIGRATIONS, ("CREATE TABLE addition (n) ",)))) as ledger:
        ledger.open()


def damaged_ledger(place: Place) -> None:
    ledger_with(place)
    Path(place["COCOON_NODE_STATE_DIR"], "ledger.sqlite").write_bytes(b"not a ledger" * 1000)


def without_root(place: Place) -> None:
    os.rmdir(place["COCOON_ROOT_DIR"])


def engine_without_program(place: Place) -> None:
    place |= {"COCOON_NODE_STORE": "cocoon", "VK_COCOON_BIN": "/nonexistent/cocoon"}


def tls_of(place: Place, name: str = "host-1", ends_in_days: int = 90) -> pki.TlsDirectory:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    tls = pki.TlsDirectory(Path(place["COCOON_ROOT_DIR"]).parent / "tls")
    tls.trust(authority)
    tls.use(pki.issue(authority, name, begins_in_days=-400, ends_in_days=ends_in_days))
    place |= tls.agent_settings()
    return tls


def open_socket_directory(place: Place) -> None:
    directory = Path(place["COCOON_ROOT_DIR"]).parent / "open"
    directory.mkdir(mode=0o755)
    place["COCOON_NODE_LISTEN"] = f"unix:{directory}/agent.sock"


CASES: dict[str, tuple[Callable[[Place], object], str, str, str]] = {
    "ledger of a newer release": (newer_ledger, "ledger", "failed", "newer release"),
    "damaged ledger": (damaged_ledger, "ledger", "failed", "is damaged"),
    "another node's ledger": (lambda place: ledger_with(place, node_name="host-9"), "node-name", "failed", "host-9"),
    "written in the future": (lambda place: ledger_with(place, last_write_at=4e9), "clock", "failed", "2096-"),
    "clock in doubt": (lambda place: ledger_with(place, clock_in_doubt=True), "clock", "warning", "was stepped"),
    "store not there": (lambda place: ledger_with(place, store_id="0" * 32), "store", "failed", "does not exist"),
    "no root directory": (without_root, "host", "failed", "No such file"),
    "no meminfo": (lambda place: place.update(COCOON_NODE_PROCFS="/nonexistent"), "host", "failed", "meminfo"),
    "no engine": (engine_without_program, "engine", "failed", "/nonexistent/cocoon"),
    "certificate of another node": (lambda place: tls_of(place, "host-2"), "tls", "failed", "(host-2)"),
    "expired": (lambda place: tls_of(place, ends_in_days=-2), "tls", "failed", "ran out"),
    "expires soon": (lambda place: tls_of(place, ends_in_days=5), "tls", "warning", "runs out at"),
    "no key": (lambda place: tls_of(place).key.unlink(), "tls", "failed", "No such file"),
    "key for all to read": (lambda place: tls_of(place).key.chmod(0o644), "tls-key", "failed", "0644"),
    "not this host's address": (
        lambda place: place.update(COCOON_NODE_HTTP_LISTEN="192.0.2.1:1"),
        "http-listen",
        "failed",
        "Cannot assign",
    ),
    "socket in an open directory": (open_socket_directory, "listen", "failed", "mode 0700"),
    "no state directory": (
        lambda place: place.update(COCOON_NODE_STATE_DIR="/nonexistent/a/b"),
        "state-dir",
        "failed",
        "does not exist",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found(run_agent: Run, place: Place, case: str, tmp_path: Path) -> None:
    spoil, check, status, words = CASES[case]
    spoil(place)
    before = state_of(tmp_path)
    found = findings(run_agent, place, int(status == "failed"))
    assert found[check][0] == status
    assert words in found[check][1]
    assert state_of(tmp_path) == before


@contextlib.contextmanager
def somebody_on(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))):
        yield


def test_an_address_that_another_program_has(run_agent: Run, place: Place) -> None:
    with somebody_on(place["COCOON_NODE_LISTEN"]):
        assert findings(run_agent, place, 1)["listen"][1].endswith("is in use by another program")


def test_a_store_on_another_disk(
    run_agent: Run, agent_process: Callable[..., AgentProcess], place: Place, tmp_path: Path
) -> None:
    """F5: what is mounted there has no marker, or another one."""
    agent_process(place, "host-1").stop()
    store = Path(place["COCOON_ROOT_DIR"], "snapshots")
    (store / ".cocoon-node-store").write_text("0" * 32 + "\n")
    found = findings(run_agent, place, 0)
    assert found["store"][1].endswith(", rebuilt"), "the ledger knows no snapshot yet"
    (store / ".cocoon-node-store").unlink()
    assert "MARKER_MISSING" in findings(run_agent, place, 1)["store"][1]


def test_the_table_is_for_people(run_agent: Run, place: Place) -> None:
    done = run_agent("doctor", **place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].split() == ["CHECK", "STATUS", "FOUND", "REMEDY"]
    assert "node host-1, address 192.0.2.1" in done.stdout


def test_settings_that_are_wrong_are_told_as_ever(run_agent: Run, place: Place) -> None:
    done = run_agent("doctor", **place | {"VK_RESERVE_PERCENT": "101"})
    assert done.returncode == 2
    assert "VK_RESERVE_PERCENT" in done.stderr
