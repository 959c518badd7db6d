"""Garbage on every port: seeded mutations of what real clients say. A thousand in CI, tens of thousands by hand."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from tests.security.conftest import GET, Besieged, raw, watch
from tests.support import abuse
from tests.support.abuse import Mutations, Recorder
from tests.support.waiting import wait_for

Start = Callable[..., Besieged]
PORTS = ("grpc", "unix", "http")
_SEED = int(os.environ.get("ABUSE_SEED", "20260131"))
_COUNT, _LONG_COUNT = 400, 20_000
_COMMAND = Path(sys.executable).with_name("cocoon-node-agent")


@pytest.fixture
def recordings(besieged: Start) -> Callable[[Besieged], list[bytes]]:
    """A function that returns what clients of every kind say to an agent: calls, streams, changes, and requests."""

    def record(place: Besieged) -> list[bytes]:
        calls, pages = Recorder(place.agent.address), Recorder(place.agent.http_address)
        with grpc.insecure_channel(calls.address) as channel:
            raw(channel, GET)(b"", timeout=20, metadata=(("x-request-id", "a-request"),))
            stream = watch(channel)
            next(stream)
            stream.cancel()
        for arguments in (
            ("snapshots", "list"),
            ("snapshots", "purge", "vk-default-none-0", "--yes"),
            ("snapshots", "gc", "--dry-run"),
        ):
            subprocess.run(
                [_COMMAND, *arguments, "--address", calls.address], capture_output=True, timeout=60, check=False
            )
        for path in ("healthz", "metrics"):
            urllib.request.urlopen(f"http://{pages.address}/{path}", timeout=20).close()
        calls.close()
        pages.close()
        found = [bytes(said) for said in (*calls.recordings, *pages.recordings)]
        assert len(found) >= 5
        assert all(found)
        return found

    return record


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("port", PORTS)
def test_mutated_recordings(
    besieged: Start, recordings: Callable[[Besieged], list[bytes]], port: str, long_profile: bool
) -> None:
    """The agent answers everybody else after each handful, and neither memory nor files grow."""
    place = besieged({"COCOON_NODE_LOG_FORMAT": "json"})
    connect: dict[str, Callable[[], socket.socket]] = {
        "grpc": place.connect,
        "unix": place.connect_unix,
        "http": place.connect_http,
    }
    mutations = Mutations(recordings(place), _SEED)
    for number in range(_LONG_COUNT if long_profile else _COUNT):
        abuse.say(connect[port], mutations.next(), seconds=0.005)
        if number % 100 == 99:
            place.friends_come_back()
    # So that none of the last words can end the server under those who are asked next.
    wait_for(lambda: place.restarts() == _restarts_after(place), what="the last restart")
    place.friends_come_back()
    place.at_rest_again()
    lines = place.agent.process.log_path.read_text().splitlines()
    problems = [line for line in lines if '"level": "error"' in line and "_server_main_loop" not in line]
    assert not problems, f"seed {_SEED}"


def test_a_method_that_is_no_text(besieged: Start) -> None:
    """One call with such a name ends the library's server. The agent's begins anew, and all find it again."""
    place = besieged()
    words = abuse.request_headers(GET).replace(b".NodeResources", b"\xaeNodeResources")
    for number, connect in enumerate((place.connect, place.connect_unix, place.connect)):
        abuse.say(connect, abuse.PREFACE + abuse.frame(abuse.SETTINGS, 0, 0) + abuse.frame(abuse.HEADERS, 5, 1, words))
        wait_for(functools.partial(_has_begun_anew, place, number), what="a new beginning")
        place.friends_come_back()
        assert place.restarts() == number + 1
    place.at_rest_again()
    assert place.agent.process.log_path.read_text().count("begins anew") == 3


def _has_begun_anew(place: Besieged, seen: int) -> bool:
    return place.restarts() > seen


def _restarts_after(place: Besieged) -> int:
    """How often it began anew, asked after a time in which it would have noticed that it has to."""
    until = time.monotonic() + 2.5
    wait_for(lambda: time.monotonic() > until)
    return place.restarts()
