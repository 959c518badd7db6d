"""Snapshots as the stand-in runtime writes them, and the agent's word on which of them may be restored."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path

import grpc

from cocoonstack.node.v1 import snapshot_cache_pb2, snapshot_cache_pb2_grpc

STAND_IN = "stand-in"
_TIMEOUT_SECONDS = 10.0


def write_snapshot(
    store: Path, name: str, *, size_bytes: int = 4096, snapshot_id: str | None = None, life: str = ""
) -> str:
    """Write a small, complete snapshot into a directory store, by rename as writers must; return its id.

    One of that name that is there already is replaced, as a VM that hibernates again replaces its image. `snapshot_id`
    is that of a snapshot that was pulled; by default the snapshot is a new one.
    """
    chosen = snapshot_id or uuid.uuid4().hex
    unique = uuid.uuid4().hex[:8]
    draft = store / f".pending-{name}.{unique}"
    draft.mkdir(parents=True)
    config = {"id": chosen, "name": name, "image": STAND_IN, "cpu": 1, "hypervisor": STAND_IN, "description": life}
    (draft / "disk").write_bytes(b"\0" * size_bytes)
    (draft / "snapshot.json").write_text(json.dumps({"version": 1, "config": config}))
    target = store / name
    if target.exists():
        old = store / f".pending-{name}.old-{unique}"
        os.rename(target, old)
        os.rename(draft, target)
        shutil.rmtree(old)
    else:
        os.rename(draft, target)
    return chosen


class LocalCopies:
    """The agent's answer about copies on its host. Ask it before a copy is used, whatever lies on the disk."""

    def __init__(self, agent_address: str) -> None:
        self._channel = grpc.insecure_channel(agent_address)
        self._stub = snapshot_cache_pb2_grpc.SnapshotCacheStub(self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def problem_with(self, name: str, snapshot_id: str) -> str:
        """Return why the copy of that name cannot be restored; empty when it is the snapshot of that id, unharmed."""
        request = snapshot_cache_pb2.VerifySnapshotRequest(name=name, expected_snapshot_id=snapshot_id)
        try:
            self._stub.VerifySnapshot(request, timeout=_TIMEOUT_SECONDS)
        except grpc.RpcError as error:
            return str(error.details())
        return ""
