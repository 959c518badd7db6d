"""The agent and callers of the next version; the agent's commands and an agent of the next version."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from devenv.cocoon_programs import AgentProcess
from devenv.vm_snapshots import write_snapshot
from tests.support.other_version import NEXT_TEXT, PACKAGE, VersionProxy, fill, newer, next_version
from tests.support.snapshot_calls import retention, state
from tests.support.waiting import wait_for

NEXT = next_version()
VM = "vk-default-web"
_STREAMS = {"WatchNodeResources": 1, "WatchSnapshots": 2, "CollectGarbage": 1}
"""Calls with several answers, and how many of them are there at once."""
_UNKNOWN = 99


@pytest.fixture
def agent(agent_process: Callable[..., AgentProcess]) -> AgentProcess:
    """An agent that will never see a controller, with one snapshot."""
    agent = agent_process({"COCOON_NODE_STANDALONE": "true", "COCOON_NODE_POLICY_MAX_AGE": "1d"})
    (agent.root / "snapshots").mkdir(exist_ok=True)
    write_snapshot(agent.root / "snapshots", VM)
    wait_for(lambda: state(agent.address, VM) == "UNCLAIMED", what="the snapshot being seen")
    return agent


@pytest.fixture
def channel(agent: AgentProcess) -> Iterator[grpc.Channel]:
    """A connection to it."""
    with grpc.insecure_channel(agent.address) as channel:
        yield channel


def _request(method: str, **values: Any) -> Any:  # noqa: ANN401 - a message of the next version
    message = NEXT.parse(f"{method}Request", b"")
    for name, value in values.items():
        field = getattr(message, name)
        if isinstance(value, dict):
            for key, inner in value.items():
                setattr(field, key, inner)
        elif isinstance(value, list):
            field.extend(value)
        else:
            setattr(message, name, value)
    fill(message)
    return message


def _call(channel: grpc.Channel, service: str, method: str, **values: Any) -> list[Any]:  # noqa: ANN401
    """Make a call as the next version makes it, and read the answers as it reads them."""
    path, request = f"/{PACKAGE}.{service}/{method}", _request(method, **values)
    if method in _STREAMS:
        call: Any = channel.unary_stream(path)(request.SerializeToString(), timeout=20)
        answers = [next(call) for _ in range(_STREAMS[method])]
        call.cancel()
    else:
        one: Any = channel.unary_unary(path)
        answers = [one(request.SerializeToString(), timeout=20)]
    return [NEXT.parse(f"{method}Response", answer) for answer in answers]


CALLS: dict[str, dict[str, Any]] = {
    "GetNodeResources": {},
    "WatchNodeResources": {},
    "ListSnapshots": {},
    "GetSnapshot": {"name": VM},
    "WatchSnapshots": {},
    "GetCacheUsage": {},
    "SyncOwners": {"sync_revision": 1, "controller_epoch": 1, "cluster_id": "a-cluster"},
    "RetainSnapshots": {"owner": {"vm_name": VM}},
    "ReleaseRetention": {"owner": {"vm_name": VM}},
    "PurgeSnapshots": {"owner": {"vm_name": VM}, "dry_run": True},
    "CollectGarbage": {"dry_run": True},
    "VerifySnapshot": {"name": VM},
}


def test_every_call_has_a_row() -> None:
    assert set(CALLS) == {path.rpartition("/")[2] for path in NEXT.methods()}


def test_fields_of_the_next_version_are_left_alone_in_every_call(channel: grpc.Channel) -> None:
    """Sent with what only the next version has, each call is answered as without it."""
    for method, values in CALLS.items():
        service = "NodeResources" if method.endswith("NodeResources") else "SnapshotCache"
        answers = _call(channel, service, method, **values)
        assert answers, method
        assert all(getattr(answer, NEXT_TEXT) == "" for answer in answers), method


def test_a_reason_of_the_next_version_keeps_releases_and_purges(agent: AgentProcess, channel: grpc.Channel) -> None:
    """A promise must not be refused because a newer controller has one more reason for it."""
    (kept,) = _call(channel, "SnapshotCache", "RetainSnapshots", owner={"vm_name": VM}, reason=_UNKNOWN)
    assert kept.outcome == pb.RETAIN_OUTCOME_RETAINED
    assert retention(agent.address, VM)[0] == "REQUESTED"
    # What protects a snapshot does not look at reasons.
    (skipped,) = _call(channel, "SnapshotCache", "PurgeSnapshots", owner={"vm_name": VM}, reason=_UNKNOWN)
    assert [each.outcome for each in skipped.results] == [pb.PURGE_OUTCOME_SKIPPED_RETAINED]
    assert state(agent.address, VM) == "RETAINED"
    (released,) = _call(channel, "SnapshotCache", "ReleaseRetention", owner={"vm_name": VM}, reason=_UNKNOWN)
    assert [each.name for each in released.snapshots] == [VM]
    (purged,) = _call(channel, "SnapshotCache", "PurgeSnapshots", owner={"vm_name": VM}, reason=_UNKNOWN)
    assert [each.outcome for each in purged.results] == [pb.PURGE_OUTCOME_PURGED]


@pytest.mark.parametrize(
    ("states", "found"),
    [([], 1), ([_UNKNOWN], 0), ([_UNKNOWN, pb.SNAPSHOT_STATE_UNCLAIMED], 1), ([pb.SNAPSHOT_STATE_RETAINED], 0)],
)
def test_a_state_of_the_next_version_matches_nothing_and_never_everything(
    agent: AgentProcess, channel: grpc.Channel, states: list[int], found: int
) -> None:
    for vm_name in ("", VM):
        (answer,) = _call(channel, "SnapshotCache", "ListSnapshots", states=states, vm_name=vm_name)
        assert (len(answer.snapshots), answer.total_size) == (found, found), state(agent.address, VM)


def _next_states(name: str, message: Any) -> None:  # noqa: ANN401 - a message of the next version
    """Every enum of an answer has a value that this version does not know."""
    for field, value in message.ListFields():
        if field.enum_type is not None and not field.is_repeated:
            setattr(message, field.name, _UNKNOWN)
        elif field.message_type is not None and field.message_type.full_name.startswith(PACKAGE):
            for part in value if field.is_repeated else (value,):
                _next_states(name, part)


COMMANDS = (
    (("list",), "UNKNOWN_99"),
    (("show", VM), VM),
    (("usage",), "UNKNOWN_99"),
    (("why", VM), "a state of a newer agent"),
    (("verify", VM), VM),
    (("retain", VM), "UNKNOWN_99"),
    (("purge", VM, "--dry-run"), "UNKNOWN_99"),
    (("release", VM), "UNKNOWN_99"),
    (("gc", "--dry-run"), "removed"),
)


@pytest.mark.parametrize("output", ["table", "json"])
def test_commands_show_what_a_newer_agent_says(
    agent: AgentProcess, run_agent: Callable[..., subprocess.CompletedProcess[str]], output: str
) -> None:
    with VersionProxy(agent.address, answers=newer(NEXT, _next_states)).running() as proxy:
        for words, shown in COMMANDS:
            form = () if words[0] == "why" else ("-o", output)
            done = run_agent("snapshots", *words, *form, "--address", proxy.address)
            assert "Traceback" not in done.stdout + done.stderr, words
            assert done.returncode == 0, done.stderr
            if form and output == "json":
                json.loads(done.stdout)
            else:
                assert shown in done.stdout + done.stderr, words
