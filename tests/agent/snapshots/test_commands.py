"""The commands `snapshots …` and `accept …` as an operator runs them, with a running agent and with a stopped one."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import yaml

from agent.config_values import listen_addresses
from agent.snapshot_client import ClientError, default_address
from agent.snapshots.stores.identity import MARKER_FILE
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots.stores.harness import envelope, write_snapshot
from tests.support.waiting import wait_for

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_COMMAND = Path(sys.executable).with_name("cocoon-node-agent")
VM = "vk-ns-web"


@dataclass
class Host:
    """A host with snapshots; `run` gives the arguments of `snapshots` to the command."""

    agent: AgentProcess
    command: Run
    offline: bool

    @property
    def root(self) -> Path:
        return self.agent.root / "snapshots"

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        mode = ["--offline"] if self.offline else []
        done = self.command("snapshots", *arguments, *mode, **self.variables())
        assert done.returncode == status, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 # whatever the command prints
        return json.loads(self.run(*arguments, "-o", "json").stdout)

    def variables(self) -> dict[str, str]:
        ours = ("VK_", "COCOON_")
        return {key: value for key, value in self.agent.environment().items() if key.startswith(ours)}

    def names(self) -> list[str]:
        return [one["name"] for one in self.json("list")]


@pytest.fixture(params=["online", "offline"])
def host(request: pytest.FixtureRequest, tmp_path: Path, run_agent: Run) -> Iterator[Host]:
    """Two snapshots of VMs and an image, with an agent that runs or with none."""
    agent = AgentProcess(tmp_path / "agent", "host-1", {"COCOON_NODE_STANDALONE": "true"})
    made = Host(agent, run_agent, offline=request.param == "offline")
    made.root.mkdir()
    for number, name in enumerate((VM, "vk-ns-db", "ubuntu")):
        write_snapshot(made.root, name, metadata=envelope(name, f"id-{number}"))
    if not made.offline:
        agent.start()
    yield made
    agent.release()


@pytest.fixture
def stopped(tmp_path: Path, run_agent: Run) -> Iterator[Host]:
    """A host whose agent ran once, with one retained snapshot."""
    agent = AgentProcess(tmp_path / "agent", "host-1")
    made = Host(agent, run_agent, offline=True)
    made.root.mkdir()
    write_snapshot(made.root, VM, metadata=envelope(VM, "id-0"))
    made.run("retain", VM)
    yield made
    agent.release()


def test_keeping_and_purging_by_hand(host: Host) -> None:
    assert host.names() == ["ubuntu", "vk-ns-db", VM]
    assert [one["name"] for one in host.json("list", "--state", "shared")] == ["ubuntu"]
    assert [one["name"] for one in host.json("list", "--vm", VM)] == [VM]
    kept = host.json("retain", VM, "--ttl-seconds", "3600", "--expected-id", "id-0")
    assert [(one["name"], one["state"]) for one in kept] == [(VM, "SNAPSHOT_STATE_RETAINED")]
    assert host.json("show", VM)["retention"]["reason"] == "RETAIN_REASON_REQUESTED"
    assert "a purge leaves it alone" in host.run("why", VM).stdout
    refused = host.json("purge", VM, "--dry-run")
    assert [one["outcome"] for one in refused] == ["PURGE_OUTCOME_SKIPPED_RETAINED"]
    assert "SKIPPED_RETAINED" in host.run("purge", VM, "--yes").stdout
    assert [one["name"] for one in host.json("release", VM)] == [VM]
    assert host.json("release", VM) == []
    planned = host.json("purge", VM, "--dry-run")
    assert [one["outcome"] for one in planned] == ["PURGE_OUTCOME_PURGED"]
    unasked = host.run("purge", VM, status=2)
    assert "nobody to ask" in unasked.stderr
    assert VM in unasked.stdout
    assert "-o json is for programs" in host.run("purge", VM, "-o", "json", status=2).stderr
    assert (host.root / VM).is_dir()
    assert host.json("purge", VM, "--yes") == planned
    assert not (host.root / VM).exists()
    assert "NOTHING_TO_PURGE" in host.run("purge", VM, "--yes").stdout
    assert host.names() == ["ubuntu", "vk-ns-db"]


def test_collecting_by_hand(host: Host) -> None:
    """A dry run, a refusal to act unasked, and plain lines where there is no terminal."""
    for name in (VM, "vk-ns-db"):
        host.run("retain", name)
    planned = host.json("gc", "--keep-at-most", "0", "--dry-run")
    assert [one["item"]["name"] for one in planned[:-1]] == [VM, "vk-ns-db"]
    assert {one["item"]["outcome"] for one in planned[:-1]} == {"COLLECTION_OUTCOME_WOULD_REMOVE"}
    assert planned[-1]["summary"]["removedCount"] == 2
    assert "nothing was removed" in host.run("gc", "--keep-at-most", "0", status=2).stderr
    assert host.names() == ["ubuntu", "vk-ns-db", VM]
    done = host.run("gc", "--keep-at-most", "1", "--yes").stdout.splitlines()
    assert len(done) == 2
    assert done[0].startswith(f"REMOVED  {VM}  ")
    assert done[1].startswith("1 removed, ")
    usage = host.json("usage")
    counts = {one["state"].removeprefix("SNAPSHOT_STATE_"): one["count"] for one in usage["states"]}
    assert (counts["RETAINED"], counts["SHARED"], counts["UNCLAIMED"]) == (1, 1, 0)
    assert "a collection would do nothing now: NO_POLICY" in host.run("why", "vk-ns-db").stdout
    assert "nothing done: NO_POLICY" in host.run("gc").stdout


def test_every_answer_is_there_for_people_and_for_programs(host: Host) -> None:
    """JSON and YAML say the same, with every field of the API under its JSON name; a table fits its columns."""
    for arguments in (["list"], ["show", VM], ["verify", VM, "--expected-id", "id-0"], ["usage"], ["retain", VM]):
        as_json = host.json(*arguments)
        as_yaml = yaml.safe_load(host.run(*arguments, "-o", "yaml").stdout)
        table = host.run(*arguments).stdout
        one = as_json[0] if isinstance(as_json, list) else as_json
        message = pb.GetCacheUsageResponse if arguments == ["usage"] else pb.Snapshot
        plain = {field.json_name for field in message.DESCRIPTOR.fields if not field.has_presence}
        assert plain <= one.keys()
        assert {field.json_name for field in message.DESCRIPTOR.fields} >= one.keys()
        assert type(as_yaml) is type(as_json)
        assert VM in table or arguments == ["usage"]
    assert "\x1b" not in table


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["show", "vk-ns-none"], 1, 'there is no snapshot "vk-ns-none"'),
        (["show", "../x"], 1, "(INVALID_ARGUMENT)"),
        (["verify", VM, "--expected-id", "id-9"], 1, "pull the expected one"),
        (["retain", VM, "--expected-id", "id-9"], 1, "nothing was recorded"),
        (["purge", "ubuntu", "--yes"], 1, "(INVALID_ARGUMENT)"),
        (["list", "--state", "gone"], 2, "--state must be one of"),
        (["gc", "--max-bytes", "1Gi"], 2, "is not a valid integer"),
        (["why", "vk-ns-none"], 1, "there is no snapshot"),
    ],
)
def test_a_mistake_gets_a_sentence(stopped: Host, arguments: list[str], status: int, says: str) -> None:
    """F26: on standard error, with a status, without a traceback, and nothing is touched."""
    done = stopped.run(*arguments, status=status)
    assert says in done.stderr
    assert done.stdout == ""
    assert (stopped.root / VM).is_dir()


def test_without_an_agent_a_command_says_how_to_go_on(stopped: Host) -> None:
    stopped.offline = False
    done = stopped.run("list", status=1)
    assert "does not answer" in done.stderr
    assert "--offline" in done.stderr


def test_a_running_agent_keeps_its_store_to_itself(stopped: Host) -> None:
    stopped.agent.start()
    for arguments in (["list", "--offline"], ["purge", VM, "--yes", "--offline"]):
        done = stopped.command("snapshots", *arguments, **stopped.variables())
        assert done.returncode == 1
        assert "Another program has it open" in done.stderr
    done = stopped.command("accept", "store", **stopped.variables())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_another_disk_is_accepted_by_command_only(stopped: Host) -> None:
    """F5: a store without its marker is named, and nothing is done on it before a person says so."""
    (stopped.root / MARKER_FILE).unlink()
    refused = stopped.run("list", status=1)
    assert "accept store" in refused.stderr
    assert not (stopped.root / MARKER_FILE).exists()
    accepted = stopped.command("accept", "store", **stopped.variables())
    assert accepted.returncode == 0, accepted.stderr
    assert str(stopped.root) in accepted.stdout
    assert [one["state"] for one in stopped.json("list")] == ["SNAPSHOT_STATE_RETAINED"]


def test_another_node_name_is_accepted_by_command_only(stopped: Host) -> None:
    """F34: reads go on, changes are refused, and nothing that was promised is lost by accepting."""
    stopped.agent.node_name = "host-2"
    assert stopped.names() == [VM]
    refused = stopped.run("purge", VM, "--force", "--yes", status=1)
    assert "accept node" in refused.stderr
    accepted = stopped.command("accept", "node", **stopped.variables())
    assert accepted.stdout == "the ledger belonged to node host-1 and belongs to node host-2 now\n"
    assert [one["outcome"] for one in stopped.json("purge", VM, "--yes")] == ["PURGE_OUTCOME_SKIPPED_RETAINED"]


def test_another_cluster_is_accepted_by_command_only(stopped: Host) -> None:
    """F33: a second cluster's controller is refused until the host is given to it."""

    def sync(cluster: str) -> str:
        request = pb.SyncOwnersRequest(sync_revision=1, controller_epoch=1, cluster_id=cluster)
        with grpc.insecure_channel(stopped.agent.address) as channel:
            try:
                SnapshotCacheStub(channel).SyncOwners(request, timeout=20)
            except grpc.RpcError as error:
                return str(error.details())
        return ""

    stopped.agent.start()
    assert sync("cluster-1") == ""
    assert 'this host belongs to cluster "cluster-1"' in sync("cluster-2")
    stopped.agent.stop()
    accepted = stopped.command("accept", "cluster", "--cluster-id", "cluster-2", **stopped.variables())
    assert accepted.stdout == "the host belonged to cluster cluster-1 and belongs to cluster-2 now\n"
    stopped.agent.start()
    assert sync("cluster-2") == ""
    assert 'this host belongs to cluster "cluster-2"' in sync("cluster-1")


def test_the_clock_is_believed_again_by_command(stopped: Host) -> None:
    accepted = stopped.command("accept", "clock", **stopped.variables())
    assert accepted.returncode == 0
    assert accepted.stdout.startswith("the host's clock is believed")
    assert stopped.json("usage")["clockInDoubt"] is False


@dataclass
class Terminal:
    """A command on a terminal of its own."""

    process: subprocess.Popen[bytes]
    side: int
    shown: str = ""

    def until(self, text: str) -> None:
        """Read until it shows this."""
        wait_for(lambda: self._read() or text in self.shown, 30, what=f"{text!r} on the terminal")
        while text not in self.shown:
            self._read()

    def type(self, text: str) -> None:
        os.write(self.side, text.encode())

    def end(self) -> int:
        """Read to the end and return the exit status."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None or self._read():
            assert time.monotonic() < deadline, self.shown
            self._read()
        return self.process.returncode

    def _read(self) -> bool:
        readable, _, _ = select.select([self.side], [], [], 0.05)
        if not readable:
            return False
        try:
            chunk = os.read(self.side, 65536)
        except OSError:
            # The other side has closed it.
            return False
        self.shown += chunk.decode()
        return bool(chunk)


@pytest.fixture
def terminal(stopped: Host) -> Iterator[Callable[..., Terminal]]:
    """A function that starts a command on a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [_COMMAND, "snapshots", *arguments, "--offline"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=stopped.agent.environment() | {"COCOON_NODE_STANDALONE": "true", "TERM": "xterm", "COLUMNS": "200"},
        )
        os.close(theirs)
        opened.append(Terminal(process, ours))
        return opened[-1]

    yield start
    for one in opened:
        one.process.kill()
        one.process.wait()
        os.close(one.side)


@pytest.mark.parametrize("arguments", [["purge", VM, "--force"], ["gc", "--keep-at-most", "0"]])
def test_on_a_terminal_it_asks(stopped: Host, terminal: Callable[..., Terminal], arguments: list[str]) -> None:
    """The plan comes first; no is no, also the empty answer; only yes removes."""
    for answer in ("n\n", "\n"):
        asked = terminal(*arguments)
        asked.until("Remove these snapshots?")
        assert VM in asked.shown
        asked.type(answer)
        assert asked.end() == 0
        assert "nothing was removed" in asked.shown
        assert (stopped.root / VM).is_dir()
    asked = terminal(*arguments)
    asked.until("Remove these snapshots?")
    asked.type("y\n")
    assert asked.end() == 0, asked.shown
    assert not (stopped.root / VM).exists()
    if arguments[0] == "gc":
        assert "collecting" in asked.shown
        assert "1 removed, " in asked.shown


def test_many_are_purged_and_verified_with_a_bar_on_a_terminal(
    stopped: Host, terminal: Callable[..., Terminal]
) -> None:
    names = [VM, "vk-ns-db"]
    write_snapshot(stopped.root, "vk-ns-db", metadata=envelope("vk-ns-db", "id-1"))
    verified = terminal("verify", *names)
    assert verified.end() == 0, verified.shown
    assert "verifying" in verified.shown
    assert "100%" in verified.shown
    purged = terminal("purge", *names, "--force", "--yes")
    assert purged.end() == 0, purged.shown
    assert "purging" in purged.shown
    assert "100%" in purged.shown
    assert purged.shown.count("PURGED") == 2
    assert not [name for name in names if (stopped.root / name).exists()]


def test_many_are_purged_and_verified_in_plain_lines_elsewhere(host: Host) -> None:
    """One of them that is damaged or missing is told at the end, and the others are not left out for it."""
    names = [VM, "vk-ns-db"]
    assert [one["name"] for one in host.json("verify", *names)] == names
    done = host.run("verify", VM, "vk-ns-none", "vk-ns-db", status=1)
    assert [name for name in names if name in done.stdout] == names
    assert done.stderr.count("error: ") == 1
    assert "vk-ns-none" in done.stderr
    assert "%" not in done.stdout + done.stderr
    assert "name one" in host.run("verify", *names, "--expected-id", "id-0", status=2).stderr
    planned = host.json("purge", *names, "--dry-run")
    assert [one["name"] for one in planned] == names
    assert host.json("purge", *names, "--yes") == planned
    again = host.run("purge", *names, "--yes")
    assert again.stdout.count("NOTHING_TO_PURGE") == 2
    assert "%" not in again.stdout + again.stderr


@pytest.mark.parametrize(
    ("listen", "certificate", "address"),
    [
        ("127.0.0.1:7443,unix:/run/x/socket", None, "127.0.0.1:7443"),
        ("unix:/run/x/socket,127.0.0.1:7443", None, "unix:/run/x/socket"),
        # With certificates, loopback wants one too.
        ("192.0.2.1:7443,127.0.0.1:7443,unix:/run/x/socket", "tls.crt", "unix:/run/x/socket"),
    ],
)
def test_a_command_asks_where_no_certificate_is_needed(listen: str, certificate: str | None, address: str) -> None:
    settings: Any = SimpleNamespace(listen=listen_addresses(listen), tls_cert_file=certificate, state_dir="/state")
    assert default_address(settings) == address


def test_a_command_says_how_it_can_ask_when_every_address_wants_a_certificate() -> None:
    listen = listen_addresses("192.0.2.1:7443,127.0.0.1:7443")
    settings: Any = SimpleNamespace(listen=listen, tls_cert_file="tls.crt", state_dir="/state")
    with pytest.raises(ClientError, match=r"such as 192\.0\.2\.1:7443,127\.0\.0\.1:7443,unix:/state/run/agent\.sock"):
        default_address(settings)
