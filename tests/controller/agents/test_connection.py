"""Streams to real gRPC servers on loopback: what is passed on, what is refused, what brings a stream back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
import trustme

from common.tls_files import TlsFiles, TlsFilesError
from controller.agents.connection import StreamLimits
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import StaticList
from controller.agents.endpoints import AgentEndpoint
from controller.agents.fleet import AgentFleet
from tests.support.fake_agent import FakeAgent, sample_report
from tests.support.recording_observer import RecordingObserver
from tests.support.waiting import wait_for_async

QUICK = StreamLimits(silence=1.0, first_message=1.0, first_backoff=0.05, max_backoff=0.2, refused_backoff=0.2)


@contextlib.asynccontextmanager
async def running_fleet(
    *endpoints: AgentEndpoint, credentials: ClientCredentials | None = None, limits: StreamLimits = QUICK
) -> AsyncIterator[tuple[AgentFleet, RecordingObserver]]:
    observer = RecordingObserver()
    fleet = AgentFleet([StaticList(endpoints)], observer, credentials, limits)
    task = asyncio.create_task(fleet.run())
    try:
        yield fleet, observer
        assert not task.done(), "the fleet must not end by itself"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    others = [t for t in asyncio.all_tasks() if t.get_name().startswith(("agent ", "source ", "silence"))]
    assert not others, "no task may outlive the fleet"


async def test_report_changes_and_heartbeats_arrive() -> None:
    async with FakeAgent("node-a") as agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (fleet, seen):
        await wait_for_async(lambda: seen.contacts.get("node-a", 0) >= 2, what="heartbeats")
        assert [report.revision for report in seen.reports] == [1]
        assert seen.reports[0].capacity["memory"] == "131927504Ki"
        assert fleet.connected_count() == 1

        await agent.publish(allocatable={**agent.report.allocatable, "ephemeral-storage": "1Gi"})
        await wait_for_async(lambda: len(seen.reports) == 2, what="the changed report")
        assert seen.reports[1].allocatable["ephemeral-storage"] == "1Gi"
        assert seen.losses() == []


def test_an_agent_that_is_back_is_heard_of_in_time() -> None:
    """The longest pause and the longest attempt together leave time to write the Node within 15 s."""
    assert StreamLimits().max_backoff + StreamLimits().first_message <= 14.0


async def test_unix_socket(short_directory: Path) -> None:
    path = str(short_directory / "connection-agent.sock")
    agent = FakeAgent("node-a")
    await agent.start(unix_path=path)
    async with agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(lambda: seen.reports, what="the report")


async def test_agent_dies_and_comes_back() -> None:
    """F11: an agent that does not answer is lost with a reason, nothing else is told; back again it reports at once."""
    agent = FakeAgent("node-a")
    await agent.start()
    async with running_fleet(AgentEndpoint("node-a", agent.address)) as (fleet, seen):
        await wait_for_async(lambda: seen.reports, what="the first report")
        port = agent.port
        await agent.stop()
        await wait_for_async(seen.losses, what="the loss")
        assert fleet.connected_count() == 0
        async with await agent.start(port=port):
            await wait_for_async(lambda: len(seen.reports) >= 2, what="the report after the restart")
        assert set(seen.losses()) <= {"Unavailable", "StreamBroken", "StreamEnded"}


async def test_silent_agent_is_given_up_and_tried_again() -> None:
    async with FakeAgent("node-a") as agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(lambda: seen.reports, what="the first report")
        agent.silent = True
        await wait_for_async(lambda: "Silent" in seen.losses(), what="the loss by silence")
        agent.silent = False
        await wait_for_async(lambda: len(seen.reports) >= 2, what="the report of the next stream")


async def test_agent_that_never_says_anything_is_given_up() -> None:
    agent = FakeAgent("node-a")
    agent.silent = True
    async with agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(lambda: "Silent" in seen.losses(), what="the loss by silence")
        assert seen.reports == []


async def test_wrong_name_is_dropped() -> None:
    """F34: an agent that speaks for another node is refused; nothing it says is passed on."""
    async with FakeAgent("node-b") as agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(seen.refusals, what="the refusal")
        await wait_for_async(lambda: agent.watches >= 2 and agent.open_watches == 0, what="the dropped stream")
        assert seen.refusals()[0][:4] == ("refusal", agent.address, "node-a", "IdentityMismatch")
        assert len(seen.refusals()) == 1, "a refusal that goes on is told once"
        assert seen.reports == []
        assert seen.contacts == {}


async def test_two_agents_of_one_name_are_both_told_with_their_addresses() -> None:
    """F34: who may speak for a node is decided by the observer, which can tell the two apart."""
    async with FakeAgent("node-a") as one, FakeAgent("node-a") as two:
        ends = [AgentEndpoint("node-a", agent.address) for agent in (one, two)]
        async with running_fleet(*ends) as (_, seen):
            await wait_for_async(lambda: len(seen.reports) == 2, what="both reports")
            assert {c[1] for c in seen.calls if c[0] == "report"} == {one.address, two.address}


async def test_name_is_learnt_where_the_endpoint_has_none() -> None:
    async with FakeAgent("node-a") as agent, running_fleet(AgentEndpoint("", agent.address)) as (fleet, seen):
        await wait_for_async(lambda: seen.contacts.get("node-a"), what="heartbeats under the learnt name")
        assert fleet.connected_count() == 1
        assert not [c for c in seen.calls if c[0] == "expect"]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda r: r.capacity.update(memory="0"), "capacity[memory] is zero", id="zero capacity"),
        pytest.param(lambda r: r.capacity.update(cpu="lots"), "capacity[cpu]", id="no quantity"),
        pytest.param(lambda r: r.labels.update({"a b": "x"}), "label key", id="label key"),
    ],
)
async def test_refused_report_keeps_stream_and_last_good(spoil: Callable[[object], None], words: str) -> None:
    """F6: nonsense never reaches the Node; the agent stays in contact, the next good report counts again."""
    async with FakeAgent("node-a") as agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (fleet, seen):
        await wait_for_async(lambda: seen.reports, what="the good report")
        good = sample_report("node-a")
        spoil(agent.report)
        await agent.wake()
        await wait_for_async(seen.refusals, what="the refusal")
        contacts = seen.contacts.get("node-a", 0)
        await wait_for_async(lambda: seen.contacts["node-a"] >= contacts + 2, what="heartbeats after the refusal")
        assert words in seen.refusals()[0][4]
        assert words in next(iter(fleet.connections)).problem
        assert len(seen.reports) == 1
        assert seen.losses() == []

        agent.report.CopyFrom(good)
        await agent.publish()
        await wait_for_async(lambda: len(seen.reports) == 2, what="the mended report")
        assert next(iter(fleet.connections)).problem == ""


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff", b"\x0a\x05abc", b"\x0a\x02\x0a\x00"])
async def test_undecodable_message_is_refused(raw: bytes) -> None:
    agent = FakeAgent("node-a")
    agent.raw = raw
    async with agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(seen.refusals, what="the refusal")
        assert seen.refusals()[0][3] == "InvalidReport"
        assert seen.reports == []


async def test_message_beyond_4_mib_ends_the_stream() -> None:
    agent = FakeAgent("node-a")
    agent.raw = b"\x0a" + b"\x80\x80\x80\x04" + b"x" * (8 * 1024 * 1024)
    async with agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(lambda: "TooManyRequests" in seen.losses() or seen.losses(), what="the loss")
        assert seen.reports == []


async def test_refusing_server_is_tried_again() -> None:
    agent = FakeAgent("node-a")
    agent.refuse_with = grpc.StatusCode.RESOURCE_EXHAUSTED
    async with agent, running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
        await wait_for_async(lambda: agent.watches >= 2, what="two tries")
        assert "TooManyRequests" in seen.losses()
        agent.refuse_with = None
        await wait_for_async(lambda: seen.reports, what="the report")


async def test_plain_text_leaves_no_machine() -> None:
    async with running_fleet(AgentEndpoint("node-a", "192.0.2.1:7443")) as (_, seen):
        await wait_for_async(seen.refusals, what="the refusal")
        assert seen.refusals()[0][3] == "AddressRefused"


async def test_endpoints_come_and_go() -> None:
    async with FakeAgent("node-a") as one, FakeAgent("node-b") as two:  # noqa: SIM117 - the agents outlive the fleet
        async with running_fleet(AgentEndpoint("node-a", one.address)) as (fleet, seen):
            await wait_for_async(lambda: seen.reports, what="the first agent")
            fleet.set_endpoints("list", (AgentEndpoint("node-b", two.address),))
            await wait_for_async(lambda: len(seen.reports) == 2, what="the second agent")
            await wait_for_async(lambda: one.open_watches == 0, what="the end of the first stream")
            assert ("forget", one.address, "node-a") in seen.calls
            assert seen.losses() == [], "an agent that is no longer named is not lost"


async def test_everything_is_given_back_at_the_end() -> None:
    async with FakeAgent("node-a") as agent:
        async with running_fleet(AgentEndpoint("node-a", agent.address)) as (_, seen):
            await wait_for_async(lambda: seen.reports, what="the report")
        await wait_for_async(lambda: agent.open_watches == 0, what="the end of the stream at the agent")


class _Pki:
    """A CA, a server certificate per node name, a client certificate, as files."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.files = TlsFiles(*(str(directory / name) for name in ("ca.pem", "client.pem", "client.key")))
        self.ca.cert_pem.write_to_path(self.files.authorities)
        self.renew()

    def renew(self) -> None:
        client = self.ca.issue_cert("cocoon-node-controller")
        Path(self.files.certificate).write_bytes(b"".join(blob.bytes() for blob in client.cert_chain_pems))
        client.private_key_pem.write_to_path(self.files.key)

    def server(self, node_name: str) -> grpc.ServerCredentials:
        cert = self.ca.issue_cert(node_name)
        chain = b"".join(blob.bytes() for blob in cert.cert_chain_pems)
        return grpc.ssl_server_credentials(
            [(cert.private_key_pem.bytes(), chain)], self.ca.cert_pem.bytes(), require_client_auth=True
        )


async def test_tls_checks_the_node_name(tmp_path: Path) -> None:
    pki = _Pki(tmp_path)
    right, wrong = FakeAgent("node-a"), FakeAgent("node-b")
    await right.start(credentials=pki.server("node-a"))
    await wrong.start(credentials=pki.server("node-c"))
    ends = (AgentEndpoint("node-a", right.address), AgentEndpoint("node-b", wrong.address))
    async with right, wrong, running_fleet(*ends, credentials=ClientCredentials(pki.files)) as (_, seen):
        await wait_for_async(lambda: seen.reports and seen.losses(), what="one report and one refused handshake")
        assert {report.node_name for report in seen.reports} == {"node-a"}
        assert {call[2] for call in seen.calls if call[0] == "loss"} == {"node-b"}


def test_broken_tls_files_keep_the_last_good_set(tmp_path: Path) -> None:
    """F22: half a file written keeps the last good credentials and says so; a mended file is taken."""
    pki = _Pki(tmp_path)
    credentials = ClientCredentials(pki.files)
    first = credentials.current()
    whole = Path(pki.files.certificate).read_bytes()
    Path(pki.files.certificate).write_bytes(whole[: len(whole) // 2])
    assert credentials.current() is first
    assert credentials.problem
    Path(pki.files.certificate).write_bytes(whole)
    assert credentials.current() is first
    assert credentials.problem == ""
    pki.renew()
    assert credentials.current() is not first


def test_tls_files_that_never_worked_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(TlsFilesError, match="nowhere"):
        ClientCredentials(TlsFiles(*(str(tmp_path / "nowhere") for _ in range(3))))
