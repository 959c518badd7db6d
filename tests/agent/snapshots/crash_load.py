"""Mixed load on a real agent until it dies, and what must be true of its host after each restart.

Four callers at once: a controller that syncs, retains, releases and purges; a person who keeps backed-up snapshots and
collects them again; an importer that writes beside the agent; a reader. Each works on names of its own, so that what
was acknowledged to it is known exactly.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

from agent.snapshots.stores.trash import TRASH_DIRECTORY
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots.stores.harness import SMALL_FILES, envelope, write_snapshot
from tests.support.waiting import wait_for

_Request = TypeVar(
    "_Request", pb.SyncOwnersRequest, pb.RetainSnapshotsRequest, pb.ReleaseRetentionRequest, pb.PurgeSnapshotsRequest
)
PODS = [f"p{number}" for number in range(6)]
COLLECTED_PODS = [f"c{number}" for number in range(4)]
RUNNING = "running"
IMAGE = "ubuntu"
_SECONDS = 20


def vm_of(pod: str) -> str:
    return f"vk-ns-{pod}"


def owner(pod: str, *, keep: bool = False) -> pb.Owner:
    return pb.Owner(
        pod_uid=f"uid-{pod}", namespace="ns", pod_name=pod, vm_name=vm_of(pod), managed=True, keep_on_delete=keep
    )


@dataclass
class Load:
    """The callers, and what has been acknowledged to them so far."""

    agent: AgentProcess
    revision: int = 0
    synced: bool = False
    kept: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    imported: set[str] = field(default_factory=set)
    calls: int = 0
    failures: list[BaseException] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """VM names of the owners in the last sync that was tried."""

    @property
    def root(self) -> Path:
        return self.agent.root / "snapshots"

    def prepare(self) -> None:
        """Put into the store what nobody may ever touch."""
        self.root.mkdir()
        for name in (vm_of(RUNNING), IMAGE):
            self.write(name)
        half = self.root / ".pending-vk-ns-half"
        half.mkdir()
        (half / "memory-ranges").write_bytes(b"half")

    def write(self, name: str) -> None:
        """Write a snapshot as an import does, unless one stands there."""
        if not (self.root / name).exists():
            write_snapshot(self.root, name, metadata=envelope(name, f"id-{name}-{time.monotonic_ns()}"))
            self.removed.discard(name)

    def run(self, seed: int, rounds: int) -> None:
        """Let all callers work until the agent is gone or the controller has done its rounds."""
        ended = threading.Event()
        callers = [
            threading.Thread(target=self._repeat, args=(step, seed + number, 1_000_000, ended))
            for number, step in enumerate((self._collect, self._import, self._read), start=1)
        ]
        for caller in callers:
            caller.start()
        self._repeat(self._control, seed, rounds, ended)
        ended.set()
        for caller in callers:
            caller.join()
        assert not self.failures, self.failures

    def check(self) -> None:
        """Fail unless what was acknowledged before the agent died is still so."""
        # An agent that was not started again since sees an import at its next look only.
        wait_for(lambda: self.imported <= self._snapshots().keys(), _SECONDS, what="all imports listed")
        snapshots = self._snapshots()
        states = {name: snapshot.state for name, snapshot in snapshots.items()}
        if self.synced:
            assert states[vm_of(RUNNING)] == pb.SNAPSHOT_STATE_IN_USE
        assert states[IMAGE] == pb.SNAPSHOT_STATE_SHARED
        assert states[".pending-vk-ns-half"] == pb.SNAPSHOT_STATE_PENDING
        assert (self.root / ".pending-vk-ns-half" / "memory-ranges").read_bytes() == b"half"
        # Claimed again by a sync right before the crash, it is in use; the promise stands all the same.
        still_kept = {name for name, snapshot in snapshots.items() if snapshot.HasField("retention")}
        assert self.kept - still_kept == set()
        assert {states[name] for name in self.kept} <= {pb.SNAPSHOT_STATE_RETAINED, pb.SNAPSHOT_STATE_IN_USE}
        assert not self.removed & states.keys()
        for name, state in states.items():
            if state != pb.SNAPSHOT_STATE_PENDING:
                assert state != pb.SNAPSHOT_STATE_INVALID, name
                assert {path.name for path in (self.root / name).iterdir()} == {*SMALL_FILES, "snapshot.json"}, name
        trash = self.root / TRASH_DIRECTORY
        wait_for(lambda: not trash.exists() or not any(trash.iterdir()), _SECONDS, what="an empty trash")

    def _snapshots(self) -> dict[str, pb.Snapshot]:
        with grpc.insecure_channel(self.agent.address) as channel:
            request = pb.ListSnapshotsRequest(page_size=1000)
            listed = SnapshotCacheStub(channel).ListSnapshots(request, timeout=_SECONDS).snapshots
        return {snapshot.name: snapshot for snapshot in listed}

    def _repeat(
        self,
        step: Callable[[SnapshotCacheStub, random.Random], None],
        seed: int,
        rounds: int,
        ended: threading.Event,
    ) -> None:
        choice = random.Random(seed)  # noqa: S311  # which call comes next
        try:
            # A call that fails is one the dead agent did not answer; what it did is neither promised nor known.
            with grpc.insecure_channel(self.agent.address) as channel, contextlib.suppress(grpc.RpcError):
                calls = SnapshotCacheStub(channel)
                for _ in range(rounds):
                    if ended.is_set():
                        return
                    step(calls, choice)
                    self.calls += 1
        except BaseException as failure:
            self.failures.append(failure)

    def _control(self, calls: SnapshotCacheStub, choice: random.Random) -> None:
        pod = choice.choice(PODS)
        name = vm_of(pod)
        self.write(name)
        self._sync(calls)
        action = choice.choice(["retain", "flag", "release and purge", "purge"])
        if action == "retain":
            answer = calls.RetainSnapshots(
                _from_controller(pb.RetainSnapshotsRequest(owner=owner(pod))), timeout=_SECONDS
            )
            if answer.outcome == pb.RETAIN_OUTCOME_RETAINED:
                self.kept.add(name)
            return
        if action == "flag":
            self._sync(calls, owner(pod, keep=True))
            self._sync(calls)
            self.kept.add(name)
            return
        if action == "release and purge":
            self.kept.discard(name)
            request = _from_controller(pb.ReleaseRetentionRequest(owner=owner(pod)))
            calls.ReleaseRetention(request, timeout=_SECONDS)
        purge = _from_controller(pb.PurgeSnapshotsRequest(owner=owner(pod), sync_revision=self.revision))
        for result in calls.PurgeSnapshots(purge, timeout=_SECONDS).results:
            if result.outcome == pb.PURGE_OUTCOME_PURGED:
                assert name not in self.kept
                self.removed.add(result.name)

    def _sync(self, calls: SnapshotCacheStub, *owners: pb.Owner) -> None:
        self.revision += 1
        self.named = {one.vm_name for one in owners}
        request = pb.SyncOwnersRequest(owners=[owner(RUNNING), *owners], sync_revision=self.revision)
        calls.SyncOwners(_from_controller(request), timeout=_SECONDS)
        self.synced = True

    def _collect(self, calls: SnapshotCacheStub, choice: random.Random) -> None:
        pod = choice.choice(COLLECTED_PODS)
        self.write(vm_of(pod))
        kept = pb.RetainSnapshotsRequest(owner=owner(pod), backup_verified=True)
        calls.RetainSnapshots(kept, timeout=_SECONDS)
        # What is backed up goes first, and the controller keeps no more than this.
        policy = pb.CollectionPolicy(keep_at_most=len(PODS))
        for message in calls.CollectGarbage(pb.CollectGarbageRequest(policy=policy), timeout=_SECONDS):
            if message.item.outcome == pb.COLLECTION_OUTCOME_REMOVED:
                assert message.item.name in map(vm_of, COLLECTED_PODS)
                self.removed.add(message.item.name)

    def _import(self, _calls: SnapshotCacheStub, choice: random.Random) -> None:
        name = vm_of(f"i{choice.randrange(40)}")
        self.write(name)
        self.imported.add(name)
        time.sleep(0.005)

    def _read(self, calls: SnapshotCacheStub, _choice: random.Random) -> None:
        for snapshot in calls.ListSnapshots(pb.ListSnapshotsRequest(page_size=1000), timeout=_SECONDS).snapshots:
            assert snapshot.state != pb.SNAPSHOT_STATE_INVALID, snapshot.name
        calls.GetCacheUsage(pb.GetCacheUsageRequest(), timeout=_SECONDS)
        time.sleep(0.005)


def _from_controller(message: _Request) -> _Request:
    message.controller_epoch = 1
    message.cluster_id = "cluster-1"
    return message
