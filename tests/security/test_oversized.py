"""What is too big, too slow or half said: refused in words, nothing touched, and the place is somebody else's again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import grpc
import pytest

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from devenv.vm_snapshots import write_snapshot
from tests.security.conftest import GET, Besieged, raw
from tests.support import abuse
from tests.support.metrics import metric
from tests.support.waiting import wait_for

Start = Callable[..., Besieged]
LIST = "/cocoonstack.node.v1.SnapshotCache/ListSnapshots"
PURGE = "/cocoonstack.node.v1.SnapshotCache/PurgeSnapshots"
HEALTH = "/grpc.health.v1.Health/Check"
MIB = 1 << 20
# Initial window 0: the caller takes no byte of any answer before it says so.
TAKES_NOTHING = abuse.setting(4, 0)


def test_a_message_above_the_limit(besieged: Start) -> None:
    """RESOURCE_EXHAUSTED with both sizes; the purge inside it never happens."""
    place = besieged()
    write_snapshot(place.agent.root / "snapshots", "vk-default-web-0")
    request = pb.PurgeSnapshotsRequest(owner=pb.Owner(vm_name="vk-default-web-0"), reason=pb.PURGE_REASON_REQUESTED)
    payload = request.SerializeToString() + _unknown_field(5 * MIB)
    with grpc.insecure_channel(place.agent.address) as channel:
        wait_for(lambda: raw(channel, LIST)(b"", timeout=20) != b"", what="the snapshot in the list")
        with pytest.raises(grpc.RpcError) as refused:
            raw(channel, PURGE)(payload, timeout=20)
        listed = pb.ListSnapshotsResponse.FromString(raw(channel, LIST)(b"", timeout=20))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(4 * MIB) in str(refused.value.details())
    assert [snapshot.name for snapshot in listed.snapshots] == ["vk-default-web-0"]
    place.at_rest_again()


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_metadata_above_the_limit(besieged: Start, size: int) -> None:
    """Refused before the call is looked at; the connection is good for the next one."""
    place = besieged()
    with grpc.insecure_channel(place.agent.address) as channel:
        get = raw(channel, GET)
        with pytest.raises(grpc.RpcError) as refused:
            get(b"", timeout=20, metadata=(("x-much", "y" * size),))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "metadata" in str(refused.value.details())
        assert get(b"", timeout=20)
    place.at_rest_again()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(abuse.frame(abuse.DATA, 0, 1, b"x", length=0xFFFFFF), id="a frame of 16 MiB"),
        pytest.param(abuse.frame(abuse.HEADERS, 4, 1, b"\x80" * 100), id="an index that is none"),
        pytest.param(
            abuse.frame(abuse.HEADERS, 0, 1, b"\x00") + 2_000 * abuse.frame(abuse.CONTINUATION, 0, 1, b"\x00" * 500),
            id="headers without an end",
        ),
        pytest.param(abuse.frame(abuse.CONTINUATION, 4, 1, b"x"), id="a continuation of nothing"),
        pytest.param(abuse.frame(abuse.SETTINGS, 0, 0, b"12345"), id="settings of five bytes"),
        pytest.param(20_000 * abuse.frame(abuse.SETTINGS, 0, 0, abuse.setting(3, 1)), id="settings for ever"),
        pytest.param(20_000 * abuse.frame(abuse.PING, 0, 0, b"12345678"), id="pings for ever"),
        pytest.param(abuse.frame(abuse.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff") * 2, id="a window that overflows"),
        pytest.param(abuse.frame(abuse.PRIORITY, 0, 1, b"12345") * 20_000, id="priorities for ever"),
        pytest.param(abuse.frame(abuse.PUSH_PROMISE, 4, 1, b"\x00\x00\x00\x02"), id="a promise from a client"),
        pytest.param(
            b"".join(
                abuse.frame(abuse.HEADERS, 5, stream, abuse.request_headers(GET))
                + abuse.frame(abuse.RST_STREAM, 0, stream, b"\0\0\0\x08")
                for stream in range(1, 10_001, 2)
            ),
            id="calls begun and taken back",
        ),
    ],
)
def test_frames_that_no_client_sends(besieged: Start, words: bytes) -> None:
    """Whatever the server makes of them, everybody else is answered, and it gives back what they cost."""
    place = besieged()
    for _ in range(5):
        abuse.say(place.connect, abuse.PREFACE + abuse.frame(abuse.SETTINGS, 0, 0) + words, seconds=0.2)
    place.at_rest_again()


@pytest.mark.timeout(180)
def test_answers_that_nobody_takes(besieged: Start) -> None:
    """A caller that opens no window takes every place there is; others get one of them back after a second."""
    place = besieged()
    for number in range(1_000):
        write_snapshot(place.agent.root / "snapshots", f"vk-default-{'x' * 100}-{number}")
    with grpc.insecure_channel(place.agent.address) as channel:
        wait_for(
            lambda: (
                len(raw(channel, LIST)(pb.ListSnapshotsRequest(page_size=1000).SerializeToString(), timeout=20))
                > 100_000
            )
        )
    request = abuse.message(pb.ListSnapshotsRequest(page_size=1000).SerializeToString())
    calls = b"".join(
        abuse.frame(abuse.HEADERS, 4, stream, abuse.request_headers(LIST)) + abuse.frame(abuse.DATA, 1, stream, request)
        for stream in range(1, 400, 2)
    )
    with place.connect() as greedy:
        greedy.sendall(abuse.PREFACE + abuse.frame(abuse.SETTINGS, 0, 0, TAKES_NOTHING) + calls)
        listed = _calls_running(place, "reads")
        assert listed <= 64
        wait_for(place.all_is_well, 10, ignoring=(grpc.RpcError,), what="places for others")
        place.friends_are_answered()
        assert place.growth_mib() <= 128
    place.at_rest_again()


def test_a_request_that_trickles(besieged: Start) -> None:
    """Ten seconds for a request to the HTTP listener, however diligently it is sent."""
    place = besieged()
    with place.connect_http() as slow:
        started = time.monotonic()
        words = iter(b"GET /metrics HTTP/1.1\r\n" + b"X-Slow: y\r\n" * 10_000)

        def is_cut_off() -> bool:
            try:
                slow.send(bytes([next(words)]))
            except OSError:
                return True
            return abuse.ended(slow)

        wait_for(is_cut_off, 40, what="the end of a request that trickles")
        assert time.monotonic() - started > 5
    place.at_rest_again()


def test_a_page_that_nobody_reads(besieged: Start) -> None:
    """A caller with the smallest of windows that reads nothing: its place is taken back."""
    place = besieged()
    held = []
    for _ in range(40):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        host, _, port = place.agent.http_address.rpartition(":")
        connection.connect((host, int(port)))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        held.append(connection)
    place.probe_is_answered()
    wait_for(lambda: place.footprint.open_files() <= place.files_at_rest + 2, 40, what="places taken back")
    for connection in held:
        connection.close()
    place.at_rest_again()


def _unknown_field(size: int) -> bytes:
    """Return an encoded field that no message of ours has, of that many bytes."""
    length = bytearray()
    left = size
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    return b"\xfa\x7f" + bytes(length) + bytes([left]) + bytes(size)


def _calls_running(place: Besieged, kind: str) -> float:
    wait_for(lambda: metric(place.agent.http_address, "cocoon_node_active_calls", kind=kind) > 0)
    return metric(place.agent.http_address, "cocoon_node_active_calls", kind=kind)
