"""Requests of the snapshot cache: changes sent as the controller sends them, lists by the Go client."""

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.message import Message

from benchmarks import go_programs
from benchmarks.processes import Child, output_of, python
from benchmarks.snapshot_files import snapshot_name
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

_SERVICE = "/cocoonstack.node.v1.SnapshotCache"
_SECONDS = 300
_EPOCH, _REVISION, _CLUSTER = 1, 1, "00000000-0000-0000-0000-00000000bec4"


@contextmanager
def disk_directory() -> Iterator[Path]:
    """Make a directory on a disk, not on a memory file system, for as long as the block lasts."""
    with TemporaryDirectory(prefix="cocoon-benchmark-", dir="/var/tmp", ignore_cleanup_errors=True) as made:
        yield Path(made)


def owner(name: str) -> pb.Owner:
    """Return the owner of a snapshot of ours: a pod whose VM has exactly this name."""
    pod_name = name.removeprefix("vk-bench-")
    return pb.Owner(pod_uid=f"uid-{pod_name}", namespace="bench", pod_name=pod_name, vm_name=name, managed=True)


def retain_requests(first: int, count: int) -> list[pb.RetainSnapshotsRequest]:
    """Return a person's requests to keep these snapshots."""
    return [
        pb.RetainSnapshotsRequest(owner=owner(snapshot_name(index)), reason=pb.RETAIN_REASON_REQUESTED)
        for index in range(first, first + count)
    ]


def sync_request() -> pb.SyncOwnersRequest:
    """Return a controller's owner sync that says: nobody is here. Its purges refer to it."""
    return pb.SyncOwnersRequest(sync_revision=_REVISION, controller_epoch=_EPOCH, cluster_id=_CLUSTER)


def purge_requests(first: int, count: int) -> list[pb.PurgeSnapshotsRequest]:
    """Return a controller's requests to remove these snapshots."""
    return [
        pb.PurgeSnapshotsRequest(
            owner=owner(snapshot_name(index)),
            reason=pb.PURGE_REASON_TEARDOWN,
            sync_revision=_REVISION,
            controller_epoch=_EPOCH,
            cluster_id=_CLUSTER,
        )
        for index in range(first, first + count)
    ]


def call(address: str, method: str, requests: Iterable[Message]) -> tuple[list[float], bytes]:
    """Send the requests and return the latency of each in microseconds, and the last reply."""
    with Child(python("-m", "benchmarks.cache_client", address, f"{_SERVICE}/{method}")) as client:
        for request in requests:
            client.tell(base64.b64encode(request.SerializeToString()).decode())
        client.end_input()
        answer = client.read_json(_SECONDS)
    took = answer["us"]
    assert isinstance(took, list)
    return took, base64.b64decode(str(answer["last_reply"]))


def pages(address: str, page_size: int, times: int, most_pages: int = 1 << 30) -> dict[str, object]:
    """List all snapshots and return `listings_us` and `pages_us` (lists of numbers) and the number of `snapshots`."""
    options = [f"-page-size={page_size}", f"-times={times}", f"-most-pages={most_pages}"]
    return output_of([str(go_programs.build("client")), "pages", f"-target={address}", *options], _SECONDS)
