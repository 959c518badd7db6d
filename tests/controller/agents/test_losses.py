"""Why a stream cannot be had: certificates have words of their own, because they need other people than a dead host."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme

from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import StaticList
from controller.agents.endpoints import AgentEndpoint
from controller.agents.fleet import AgentFleet
from controller.agents.losses import stream_error
from tests.support import pki
from tests.support.fake_agent import FakeAgent
from tests.support.recording_observer import RecordingObserver
from tests.support.waiting import wait_for_async

OURS = trustme.CA(key_type=trustme.KeyType.ECDSA)
THEIRS = trustme.CA(key_type=trustme.KeyType.ECDSA)


@dataclass(frozen=True, slots=True)
class Pairing:
    """A certificate of the agent (None: it speaks plain text) and one of ours, and which word their meeting gets."""

    agent: pki.Pair | None
    ours: pki.Pair
    reason: str
    words: str = ""


def agents(authority: trustme.CA = OURS, name: str = "node-a", begins: int = -1, ends: int = 30) -> pki.Pair:
    return pki.issue(authority, name, begins_in_days=begins, ends_in_days=ends)


def controllers(authority: trustme.CA = OURS, begins: int = -1, ends: int = 30) -> pki.Pair:
    return pki.issue(authority, pki.CONTROLLER, begins_in_days=begins, ends_in_days=ends)


PAIRINGS = {
    "the agent's ran out": Pairing(agents(begins=-3, ends=-1), controllers(), "AgentCertificateRanOut"),
    "the agent's is not valid yet": Pairing(agents(begins=1), controllers(), "AgentCertificateNotYetValid"),
    "the agent's is of another authority": Pairing(agents(THEIRS), controllers(), "AgentCertificateRefused"),
    "the agent's is another node's": Pairing(agents(name="node-b"), controllers(), "AgentCertificateOfAnotherNode"),
    "the agent has none": Pairing(None, controllers(), "TlsHandshakeFailed"),
    "ours ran out": Pairing(agents(), controllers(begins=-3, ends=-1), "OwnCertificateRanOut", "ran out at"),
    # The agent hangs up and says nothing, and ours looks sound from here.
    "ours is of another authority": Pairing(agents(), controllers(THEIRS), "Unavailable"),
}


@pytest.mark.parametrize("pairing", PAIRINGS.values(), ids=list(PAIRINGS))
async def test_each_way_a_handshake_fails_has_its_word(pairing: Pairing, tmp_path: Path) -> None:
    """F22: what the Node's condition, the metric and the log say, and so which row of the runbook is read."""
    files = pki.TlsDirectory(tmp_path / "tls")
    files.trust(OURS)
    files.use(pairing.ours)
    server = None
    if pairing.agent is not None:
        pair = (pairing.agent.key, pairing.agent.certificate)
        server = grpc.ssl_server_credentials([pair], OURS.cert_pem.bytes(), require_client_auth=True)
    async with await FakeAgent("node-a").start(credentials=server) as agent:
        seen = RecordingObserver()
        fleet = AgentFleet([StaticList([AgentEndpoint("node-a", agent.address)])], seen, ClientCredentials(files.files))
        running = asyncio.create_task(fleet.run())
        try:
            await wait_for_async(seen.losses, what="the first loss")
            (connection,) = fleet.connections
            assert (seen.losses()[0], connection.reason) == (pairing.reason, pairing.reason)
            assert pairing.words in connection.problem
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("code", "details", "own", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "connection refused", "", "Unavailable"),
        (grpc.StatusCode.UNAVAILABLE, None, "", "Unavailable"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "ours ran out", "OwnCertificateRanOut"),
        (grpc.StatusCode.PERMISSION_DENIED, "certificate has expired", "ours ran out", "NotAuthorized"),
        (grpc.StatusCode.UNIMPLEMENTED, "", "", "NotAnAgent"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "", "", "TooManyRequests"),
        (grpc.StatusCode.INTERNAL, "handshake failed", "", "StreamBroken"),
    ],
)
def test_other_statuses(code: grpc.StatusCode, details: str | None, own: str, reason: str) -> None:
    assert stream_error(code, details, own).reason == reason
