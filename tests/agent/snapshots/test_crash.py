"""A real agent is killed at every named point and at random moments, and loses nothing that it acknowledged."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from agent.snapshots.stores.trash import TRASH_DIRECTORY
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots import crashing_agent
from tests.agent.snapshots.stores.harness import envelope, write_snapshot
from tests.support.waiting import wait_for

_Request = TypeVar(
    "_Request", pb.SyncOwnersRequest, pb.RetainSnapshotsRequest, pb.ReleaseRetentionRequest, pb.PurgeSnapshotsRequest
)
POINTS = [
    "sync-before-commit",
    "sync-after-commit",
    "retain-before-commit",
    "retain-after-commit",
    "release-before-commit",
    "release-after-commit",
    "removal-before-commit",
    "removal-before-store",
    "removal-after-store",
]
PODS = [f"p{number}" for number in range(6)]
IN_USE = "vk-ns-running"


def owner(pod: str) -> pb.Owner:
    return pb.Owner(pod_uid=f"uid-{pod}", namespace="ns", pod_name=pod, vm_name=f"vk-ns-{pod}", managed=True)


@dataclass
class Load:
    """Calls of one controller, one after the other, and what has been acknowledged so far."""

    agent: AgentProcess
    revision: int = 0
    kept: set[str] = field(default_factory=set)
    purged: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        return self.agent.root / "snapshots"

    def write(self, pod: str) -> None:
        name = f"vk-ns-{pod}"
        if not (self.root / name).exists():
            write_snapshot(self.root, name, metadata=envelope(name, f"id-{name}-{time.monotonic_ns()}"))
            self.purged.discard(name)

    def run(self, seed: int, rounds: int) -> None:
        """Make calls until the agent is gone; what was under way then is neither promised nor done."""
        choice = random.Random(seed)  # noqa: S311  # which call comes next
        with grpc.insecure_channel(self.agent.address) as channel, contextlib.suppress(grpc.RpcError):
            calls = SnapshotCacheStub(channel)
            for _ in range(rounds):
                self._round(calls, choice)

    def _round(self, calls: SnapshotCacheStub, choice: random.Random) -> None:
        pod = choice.choice(PODS)
        name = f"vk-ns-{pod}"
        self.write(pod)
        self.revision += 1
        running = [owner("running")]
        calls.SyncOwners(
            _from_controller(pb.SyncOwnersRequest(owners=running, sync_revision=self.revision)), timeout=20
        )
        action = choice.choice(["retain", "release and purge", "purge"])
        if action == "retain":
            answer = calls.RetainSnapshots(_from_controller(pb.RetainSnapshotsRequest(owner=owner(pod))), timeout=20)
            if answer.outcome == pb.RETAIN_OUTCOME_RETAINED:
                self.kept.add(name)
            return
        if action == "release and purge":
            self.kept.discard(name)
            calls.ReleaseRetention(_from_controller(pb.ReleaseRetentionRequest(owner=owner(pod))), timeout=20)
        request = _from_controller(pb.PurgeSnapshotsRequest(owner=owner(pod), sync_revision=self.revision))
        for result in calls.PurgeSnapshots(request, timeout=20).results:
            if result.outcome == pb.PURGE_OUTCOME_PURGED:
                assert name not in self.kept
                self.purged.add(result.name)

    def check(self) -> None:
        """What was acknowledged before the agent died is still so."""
        with grpc.insecure_channel(self.agent.address) as channel:
            listed = SnapshotCacheStub(channel).ListSnapshots(pb.ListSnapshotsRequest(), timeout=20).snapshots
        states = {snapshot.name: snapshot.state for snapshot in listed}
        assert states[IN_USE] in (pb.SNAPSHOT_STATE_IN_USE, pb.SNAPSHOT_STATE_UNCLAIMED)
        assert {name: states.get(name) for name in self.kept} == dict.fromkeys(self.kept, pb.SNAPSHOT_STATE_RETAINED)
        assert not self.purged & states.keys()
        assert pb.SNAPSHOT_STATE_INVALID not in states.values()
        trash = self.root / TRASH_DIRECTORY
        wait_for(lambda: not trash.exists() or not any(trash.iterdir()), 20, what="an empty trash")


def _from_controller(message: _Request) -> _Request:
    message.controller_epoch = 1
    message.cluster_id = "cluster-1"
    return message


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """A load on an agent that can be told where to crash."""
    agent = AgentProcess(tmp_path, "node-1")
    agent.process.command = [sys.executable, crashing_agent.__file__, "serve"]
    load = Load(agent)
    load.root.mkdir()
    load.write("running")
    yield load
    agent.release()


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_a_named_point_loses_nothing(load: Load, point: str) -> None:
    load.agent.settings["CRASH_AT"] = f"{point}#3"
    load.agent.start()
    load.run(seed=len(point), rounds=60)
    wait_for(
        lambda: not load.agent.process.running, 20, what=f"the end at {point}, which has to be reached three times"
    )
    load.agent.settings.clear()
    load.agent.start()
    load.check()
    load.run(seed=1, rounds=10)
    load.check()


def test_crashes_at_random_moments_lose_nothing(load: Load, long_profile: bool) -> None:
    choice = random.Random(7)  # noqa: S311  # when the next crash comes
    for number in range(300 if long_profile else 6):
        load.agent.start()
        load.check()
        killing = threading.Timer(choice.uniform(0.01, 0.4), load.agent.process.kill)
        killing.start()
        load.run(seed=number, rounds=10_000)
        killing.join()
    load.agent.start()
    load.check()
