"""Reads pods one way and prints what it took: `python -m benchmarks.deletion_reader WAY WHERE PODS EVENTS`.

WAY is `ours`, `official` or `json`. Without EVENTS (0), WHERE is a kubeconfig file, and the list of the API server it
names is read until all pods are known. With EVENTS, WHERE is a file with as many lines of a watch, which are fed from
memory, so that only reading them into a copy is measured; `json` parses them and keeps nothing.

Why this exists: each way is measured in a process of its own, so that neither inherits the other's memory or modules.
"""

import asyncio
import gc
import importlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.deletion_pods import encode, list_page, node_name, pod
from controller.deletion.pod_watch import PodWatch
from controller.kube.access import load_access
from controller.kube.client import KubeClient

NODES = 1000
# What a socket gives at once when more is waiting than fits.
_PIECE_BYTES = 64 * 1024


class _Memory:
    """A transport whose list is made up and whose watch is a file's content, given as if it had just arrived."""

    def __init__(self, pods: int, lines: bytes) -> None:
        self._page = list_page([encode(pod(number, number + 1, node_name(number, NODES))) for number in range(pods)])
        self._lines = lines
        self.started = 0.0
        self.done = asyncio.Event()

    async def get_bytes(self, path: str, query: Mapping[str, str], **_: object) -> bytes:
        """Return the list."""
        del path, query
        return self._page

    @asynccontextmanager
    async def stream_bytes(
        self, path: str, query: Mapping[str, str], inactivity_seconds: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Give the watch once."""
        del path, query, inactivity_seconds
        yield self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        self.started = time.perf_counter()
        for piece in _pieces(self._lines):
            yield piece
        self.done.set()
        await asyncio.Event().wait()


def _pieces(lines: bytes) -> Iterator[bytes]:
    return (lines[at : at + _PIECE_BYTES] for at in range(0, len(lines), _PIECE_BYTES))


async def _ours_from_memory(lines: bytes, pods: int, events: int) -> dict[str, float]:
    memory = _Memory(pods, lines)
    transport: Any = memory
    watch = PodWatch(transport)
    running = asyncio.create_task(watch.run())
    await memory.done.wait()
    seconds = time.perf_counter() - memory.started
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return {"pods_a_second": events / seconds, "pods": len(watch.reflector.items)}


async def _ours(kubeconfig: str, pods: int) -> dict[str, float]:
    access = await load_access(kubeconfig=kubeconfig, context=None, in_cluster=False)
    async with KubeClient(access) as client:
        watch = PodWatch(client)
        gc.collect()
        before, started = _resident_bytes(), time.perf_counter()
        running = asyncio.create_task(watch.run())
        await watch.reflector.wait_synced()
        seconds = time.perf_counter() - started
        grown = _resident_bytes() - before
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    if len(watch.reflector.items) != pods:
        raise SystemExit(f"{len(watch.reflector.items)} pods instead of {pods}")
    return {"synced_seconds": seconds, "pods": pods, "bytes_a_pod": grown / pods}


class _Response:
    """What the official client's watch reads from."""

    status = 200

    def __init__(self, lines: bytes) -> None:
        self._lines = lines

    def stream(self, **_: object) -> Iterator[bytes]:
        return _pieces(self._lines)

    def close(self) -> None:
        pass

    def release_conn(self) -> None:
        pass


def _official_from_memory(lines: bytes, events: int) -> dict[str, float]:
    kubernetes: Any = importlib.import_module("kubernetes")
    watch = kubernetes.watch.Watch(return_type=kubernetes.client.V1Pod)
    cache: dict[tuple[str, str], Any] = {}
    started = time.perf_counter()
    for change in watch.stream(lambda **_: _Response(lines)):
        found = change["object"]
        cache[found.metadata.namespace, found.metadata.name] = found
        if len(cache) == events:
            break
    return {"pods_a_second": events / (time.perf_counter() - started), "pods": len(cache)}


def _json(lines: bytes, events: int) -> dict[str, float]:
    split = lines.splitlines()
    started = time.perf_counter()
    for line in split:
        json.loads(line)
    return {"pods_a_second": events / (time.perf_counter() - started)}


def _official(kubeconfig: str, pods: int) -> dict[str, float]:
    kubernetes: Any = importlib.import_module("kubernetes")
    kubernetes.config.load_kube_config(config_file=kubeconfig)
    api = kubernetes.client.CoreV1Api()
    started = time.perf_counter()
    cache: dict[tuple[str, str], Any] = {}
    token = ""
    while True:
        page = api.list_pod_for_all_namespaces(limit=500, _continue=token or None, field_selector="spec.nodeName!=")
        cache |= {(each.metadata.namespace, each.metadata.name): each for each in page.items}
        token = page.metadata._continue or ""
        if not token:
            break
    seconds = time.perf_counter() - started
    if len(cache) != pods:
        raise SystemExit(f"{len(cache)} pods instead of {pods}")
    return {"synced_seconds": seconds, "pods": pods}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Read and print."""
    way, where, pods, events = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if events == 0:
        figures = asyncio.run(_ours(where, pods)) if way == "ours" else _official(where, pods)
    else:
        lines = Path(where).read_bytes()
        gc.collect()
        gc.freeze()
        if way == "ours":
            figures = asyncio.run(_ours_from_memory(lines, pods, events))
        else:
            figures = _json(lines, events) if way == "json" else _official_from_memory(lines, events)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
