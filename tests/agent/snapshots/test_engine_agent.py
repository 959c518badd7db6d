"""A real agent on the engine's store: the engine's command line, the cache's rules, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.ask import ask_report
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from cocoonstack.node.v1.snapshot_cache_pb2_grpc import SnapshotCacheStub
from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots.stores.harness import EngineHarness
from tests.support.waiting import wait_for

_SECONDS = 60
VMS = ["vk-ns-web", "vk-ns-db", "vk-ns-run"]


@dataclass
class EngineHost:
    """A stand-in engine with an agent beside it, and the calls of a controller."""

    engine: EngineHarness
    agent: AgentProcess
    calls: Any
    revision: int = 0

    def states(self) -> dict[str, str]:
        listed = self.calls.ListSnapshots(pb.ListSnapshotsRequest(), timeout=_SECONDS).snapshots
        return {one.name: pb.SnapshotState.Name(one.state).removeprefix("SNAPSHOT_STATE_") for one in listed}

    def sync(self, *pods: str) -> None:
        self.revision += 1
        owners = [owner(pod) for pod in pods]
        self.calls.SyncOwners(by_controller(pb.SyncOwnersRequest(owners=owners, sync_revision=self.revision)))

    def purge(self, pod: str) -> tuple[str, str]:
        request = by_controller(pb.PurgeSnapshotsRequest(owner=owner(pod), sync_revision=self.revision))
        (result,) = self.calls.PurgeSnapshots(request, timeout=_SECONDS).results
        return pb.PurgeOutcome.Name(result.outcome).removeprefix("PURGE_OUTCOME_"), result.deferred_reason

    def begin_purge(self, pod: str) -> int:
        """Purge in a thread, return the pid of the engine's command when it is half-way."""
        (self.engine.control / "hold-rm").touch()

        def purge() -> None:
            with pytest.raises(grpc.RpcError):
                self.purge(pod)

        threading.Thread(target=purge).start()
        wait_for((self.engine.control / "rm-pid").exists, what="the engine's removal")
        return int(wait_for((self.engine.control / "rm-pid").read_text))

    def removals(self) -> list[list[str]]:
        return [call for call in self.engine.calls() if call[:2] == ["snapshot", "rm"]]


def owner(pod: str) -> pb.Owner:
    return pb.Owner(pod_uid=f"uid-{pod}", namespace="ns", pod_name=pod, vm_name=f"vk-ns-{pod}", managed=True)


def by_controller(message: Any) -> Any:  # noqa: ANN401 # any changing request
    message.controller_epoch = 1
    message.cluster_id = "cluster-1"
    return message


@pytest.fixture(params=["old", "new"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineHost]:
    """Three VMs' snapshots and an image in the engine's store, and an agent that has been told of one pod."""
    engine = EngineHarness(tmp_path, version=request.param)
    settings = {
        "COCOON_NODE_STORE": "cocoon",
        "VK_COCOON_BIN": engine.settings.program,
        "COCOON_ROOT_DIR": engine.settings.root_dir,
        "COCOON_NODE_RUN_DIR": engine.settings.run_dir,
        "COCOON_NODE_STATE_DIR": str(engine.state_dir),
    }
    agent = AgentProcess(tmp_path / "agent", "node-1", settings)
    for name in (*VMS, "registry.local/base:latest"):
        engine.add(name)
    agent.start()
    with grpc.insecure_channel(agent.address) as channel:
        made = EngineHost(engine, agent, SnapshotCacheStub(channel))
        made.sync("run")
        yield made
    (engine.control / "hold-rm").unlink(missing_ok=True)
    agent.release()


def test_the_rules_hold_on_the_engines_store(host: EngineHost) -> None:
    """Lists, keeps, purges by full id; what the engine says a VM uses stays; an import is noticed."""
    assert host.states() == {
        "registry.local/base:latest": "SHARED",
        "vk-ns-db": "UNCLAIMED",
        "vk-ns-run": "IN_USE",
        "vk-ns-web": "UNCLAIMED",
    }
    kept = by_controller(pb.RetainSnapshotsRequest(owner=owner("web"), reason=pb.RETAIN_REASON_SEAT_RELEASE))
    assert host.calls.RetainSnapshots(kept).outcome == pb.RETAIN_OUTCOME_RETAINED
    assert host.purge("web") == ("SKIPPED_RETAINED", "")
    assert host.purge("run") == ("SKIPPED_IN_USE", "")
    # A VM that exists was made from this snapshot: the engine says so, no owner does.
    vms = [{"id": "vm-1", "snapshot_ids": {host.engine.id_of("vk-ns-db"): {}}}]
    (host.engine.control / "vms.json").write_text(json.dumps(vms))
    assert host.purge("db") == ("SKIPPED_IN_USE", "")
    (host.engine.control / "vms.json").unlink()
    host.sync("run")
    removed_id = host.engine.id_of("vk-ns-db")
    assert host.purge("db") == ("PURGED", "")
    assert host.removals() == [["snapshot", "rm", "--", removed_id]]
    assert host.purge("db") == ("NOTHING_TO_PURGE", "")
    host.engine.add("vk-ns-new")
    wait_for(lambda: "vk-ns-new" in host.states(), what="the import listed")
    assert host.purge("new")[0] == "SKIPPED_NEWER"
    host.agent.process.kill()
    host.agent.start()
    assert host.states()["vk-ns-web"] == "RETAINED"


def test_an_error_of_the_engine_defers_and_removes_nothing(host: EngineHost) -> None:
    """Rules 4 and 5: a failed list is no empty list, and no answer comes from memory as if it were the truth."""
    host.engine.behave({"snapshot list": {"status": 1, "errors": "Error: list: input/output error\n"}})
    assert host.purge("web") == ("DEFERRED", "STORE_UNAVAILABLE")
    assert host.removals() == []
    host.engine.behave({})
    wait_for(lambda: host.purge("web") == ("PURGED", ""), ignoring=(grpc.RpcError,))
    assert sorted(host.states()) == ["registry.local/base:latest", "vk-ns-db", "vk-ns-run"]


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_a_removal_by_the_engine_holds_up_nobody_else(host: EngineHost, *, fails: bool) -> None:
    """However long the engine takes: lists, syncs and promises go on; who would keep what goes waits for its end."""
    kept = by_controller(pb.RetainSnapshotsRequest(owner=owner("db"), reason=pb.RETAIN_REASON_SEAT_RELEASE))
    late = by_controller(pb.RetainSnapshotsRequest(owner=owner("web"), reason=pb.RETAIN_REASON_SEAT_RELEASE))
    purge = by_controller(pb.PurgeSnapshotsRequest(owner=owner("web"), sync_revision=host.revision))
    (host.engine.control / "hold-rm").touch()
    purging = host.calls.PurgeSnapshots.future(purge, timeout=_SECONDS)
    wait_for((host.engine.control / "rm-pid").exists, what="the engine's removal")
    assert host.states()["vk-ns-web"] == "PURGING"
    keeping = host.calls.RetainSnapshots.future(late, timeout=_SECONDS)
    assert host.calls.RetainSnapshots(kept, timeout=_SECONDS).outcome == pb.RETAIN_OUTCOME_RETAINED
    host.sync("run")
    assert host.states()["vk-ns-db"] == "RETAINED"
    assert not purging.done()
    assert not keeping.done()
    if fails:
        (host.engine.control / "fail-rm-half-way").touch()
    (host.engine.control / "hold-rm").unlink()
    (result,) = purging.result().results
    if fails:
        assert (result.outcome, result.deferred_reason) == (pb.PURGE_OUTCOME_DEFERRED, "STORE_UNAVAILABLE")
        with pytest.raises(grpc.RpcError):
            # Half of it is gone, so it cannot be kept; told so, not that there was nothing.
            keeping.result()
        assert host.states()["vk-ns-web"] == "INVALID"
    else:
        assert result.outcome == pb.PURGE_OUTCOME_PURGED
        assert keeping.result().outcome == pb.RETAIN_OUTCOME_NOTHING_TO_RETAIN
        assert "vk-ns-web" not in host.states()
    assert host.states()["vk-ns-run"] == "IN_USE"


def test_a_removal_outlives_a_killed_agent_and_is_waited_for(host: EngineHost) -> None:
    """F27: the next agent answers nothing about snapshots before the command has ended, then the truth."""
    left = ["registry.local/base:latest", "vk-ns-db", "vk-ns-run"]
    pid = host.begin_purge("web")
    host.agent.process.kill()
    os.kill(pid, 0)
    host.agent.start()
    with pytest.raises(grpc.RpcError, match=f"pid {pid} removes"):
        host.states()
    assert len(ask_report(host.agent.address).allocatable) > 0
    (host.engine.control / "hold-rm").unlink()
    wait_for(lambda: sorted(host.states()) == left, what="the truth", ignoring=(grpc.RpcError,))
    assert len(host.removals()) == 1


def test_a_removal_that_died_with_the_agent_is_finished(host: EngineHost) -> None:
    """F27: as after power loss: half a snapshot is never listed as usable, and goes."""
    pid = host.begin_purge("web")
    host.agent.process.kill()
    os.kill(pid, signal.SIGKILL)
    (host.engine.control / "hold-rm").unlink()
    host.agent.start()
    assert host.states().get("vk-ns-web") in (None, "INVALID", "PURGING")
    wait_for(lambda: "vk-ns-web" not in host.states(), what="the removal finished")
    assert host.states()["vk-ns-run"] == "IN_USE"
