"""Thousands of connections: the agent keeps within its limits, and whom it knows notices nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from devenv.cocoon_programs import AgentProcess
from tests.security.conftest import GET, MOST_GROWTH_MIB, Besieged, raw
from tests.support import abuse, pki
from tests.support.metrics import metric
from tests.support.waiting import wait_for

Start = Callable[..., Besieged]
CONNECTIONS = 10_000
LIMIT = 256
_HTTP_MOST = 32
# What a fixed page, a call and a scrape of our own keep open for a moment.
_SLACK = 16
SILENCE = b""
PREFACE_AND_SILENCE = abuse.PREFACE + abuse.frame(abuse.SETTINGS, 0, 0)
HALF_A_PREFACE = abuse.PREFACE[:9]
# A TLS 1.2 record with a ClientHello of 512 bytes, of which the first five come.
HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303")


@pytest.mark.timeout(300)
def test_ten_thousand_connections_to_the_grpc_port(besieged: Start) -> None:
    """No more than the limit stay; a stream, an open connection, the Unix socket and the probe go on undisturbed."""
    place = besieged()
    count = abuse.room_for_files(CONNECTIONS)

    def newcomer_gets_in() -> bool:
        place.newcomer_is_answered()
        return True

    with abuse.crowd(place.agent.address, count, (SILENCE, PREFACE_AND_SILENCE, HALF_A_PREFACE)) as held:
        assert place.footprint.open_files() <= place.files_at_rest + LIMIT + _SLACK
        assert place.growth_mib() <= MOST_GROWTH_MIB
        place.friends_are_answered()
        place.settled()
        connections = place.connections()
        assert (
            connections[place.agent.address]
            <= LIMIT
            == metric(place.agent.http_address, "cocoon_node_connections_limit")
        )
        assert connections[f"unix:{place.unix_path}"] == 1
        assert sum(map(abuse.ended, held)) >= count - LIMIT
        # Those that stay silent lose their places, so that others get in while the crowd is still there.
        wait_for(newcomer_gets_in, 60, ignoring=(grpc.RpcError,), what="a place for somebody new")
    place.at_rest_again()
    assert place.agent.process.log_tail(50).count("\n") < 20


@pytest.mark.timeout(300)
def test_ten_thousand_connections_to_the_http_listener(besieged: Start) -> None:
    """A probe from another host than the crowd's is answered throughout; what was given up is counted."""
    place = besieged()
    count = abuse.room_for_files(CONNECTIONS)
    with abuse.crowd(place.agent.http_address, count, (SILENCE, b"GET /metrics HTTP/1.1\r\nX-Slow: ")) as held:
        place.settled()
        assert place.footprint.open_files() <= place.files_at_rest + _HTTP_MOST + _SLACK
        assert place.growth_mib() <= MOST_GROWTH_MIB
        dropped = metric(place.agent.http_address, "cocoon_node_http_connections_dropped_total")
        assert count - _HTTP_MOST <= dropped <= count + _SLACK
        wait_for(lambda: sum(map(abuse.ended, held)) >= count - _HTTP_MOST, what="the rest ended")
    place.at_rest_again()


@pytest.mark.timeout(180)
def test_handshakes_left_half_open(agent_process: Callable[..., AgentProcess], tmp_path: Path) -> None:
    """With mutual TLS: who proves nothing loses the place after ten seconds, and those with a certificate get in."""
    authority = pki.authority()
    directory = pki.TlsDirectory(tmp_path)
    directory.trust(authority)
    directory.use(pki.issue(authority, "host-1"))
    agent = agent_process(directory.agent_settings(), node_name="host-1")
    client = pki.issue(authority, pki.CONTROLLER)
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), private_key=client.key, certificate_chain=client.certificate
    )
    options = (("grpc.ssl_target_name_override", "host-1"), ("grpc.use_local_subchannel_pool", 1))
    with grpc.secure_channel(agent.address, credentials, options=options) as open_before:
        report = raw(open_before, GET)(b"", timeout=10)
        footprint = abuse.Footprint(agent.process.pid)
        files, memory_mib = footprint.open_files(), footprint.memory_mib()
        with abuse.crowd(agent.address, 2_000, (SILENCE, HALF_A_HELLO, HALF_A_PREFACE)):
            assert raw(open_before, GET)(b"", timeout=10) == report
            assert footprint.open_files() <= files + LIMIT + _SLACK
            with grpc.secure_channel(agent.address, credentials, options=options) as newcomer:
                assert raw(newcomer, GET)(b"", timeout=60, wait_for_ready=True) == report
        wait_for(lambda: footprint.open_files() <= files + 2, what="files closed again")
        assert footprint.memory_mib() <= memory_mib + MOST_GROWTH_MIB


def test_a_limit_of_the_operators(besieged: Start) -> None:
    """COCOON_NODE_MAX_CONNECTIONS holds for each address by itself."""
    place = besieged({"COCOON_NODE_MAX_CONNECTIONS": "8"})
    with abuse.crowd(place.agent.address, 50, (PREFACE_AND_SILENCE,)):
        wait_for(lambda: place.connections()[place.agent.address] == 8)
        place.friends_are_answered()
    place.at_rest_again()
