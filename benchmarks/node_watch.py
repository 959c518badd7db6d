"""When the API shows a change: a watch of all Nodes that notes when each memory figure of each Node was first seen."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import msgspec

from benchmarks.fleet_cluster import administrator
from benchmarks.processes import BenchmarkError
from devenv.control_plane import ControlPlane


class _Metadata(msgspec.Struct):
    name: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")


class _Status(msgspec.Struct):
    capacity: dict[str, str] = {}


class _Node(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Node


class _List(msgspec.Struct):
    metadata: _Metadata


class NodeWatch:
    """Memory figures as the API shows them, each with the monotonic time at which it was first seen, in seconds."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], float] = {}
        self._arrived = threading.Condition()
        self._ended = False

    def wait_for(self, name: str, memory: str, seconds: float) -> float:
        """Return when Node `name` was first seen with capacity `memory`; raises when it was not within `seconds`."""
        key = (name, memory)
        with self._arrived:
            self._arrived.wait_for(lambda: key in self._seen or self._ended, seconds)
            if key not in self._seen:
                raise BenchmarkError(f"Node {name} did not show memory {memory} within {seconds:g} s")
            return self._seen.pop(key)

    def follow(self, lines: Iterator[str]) -> None:
        """Note what these lines of a watch say, until they end."""
        decoder = msgspec.json.Decoder(_Event)
        try:
            for line in lines:
                event = decoder.decode(line)
                seen_at = time.monotonic()
                node = event.object
                with self._arrived:
                    key = (node.metadata.name, node.status.capacity.get("memory", ""))
                    self._seen.setdefault(key, seen_at)
                    self._arrived.notify_all()
        except (httpx.HTTPError, httpx.StreamError):
            pass  # The stream was closed, by us at the end or by the server; whoever waits is told below.
        finally:
            with self._arrived:
                self._ended = True
                self._arrived.notify_all()


@contextmanager
def watch_nodes(plane: ControlPlane) -> Iterator[NodeWatch]:
    """Watch all Nodes from now on, with an administrator's rights."""
    with _client(plane) as client:
        listed = client.get("/api/v1/nodes", params={"limit": "1"})
        listed.raise_for_status()
        version = msgspec.json.decode(listed.content, type=_List).metadata.resource_version
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "false"}
        with client.stream("GET", "/api/v1/nodes", params=query) as response:
            response.raise_for_status()
            watch = NodeWatch()
            follower = threading.Thread(target=watch.follow, args=(response.iter_lines(),), daemon=True)
            follower.start()
            yield watch


def _client(plane: ControlPlane) -> httpx.Client:
    ca_file, token = administrator(plane)
    return httpx.Client(
        base_url=plane.url,
        verify=ssl.create_default_context(cafile=str(ca_file)),
        headers={"Authorization": f"Bearer {token}"},
        timeout=httpx.Timeout(30, read=None),
        trust_env=False,
    )
