"""Reads replayed pods one way and prints what it took: `python -m benchmarks.deletion_reader ours|official URL EVENTS`.

Why this exists: each way is measured in a process of its own, so that neither inherits the other's memory or modules.
"""

import asyncio
import gc
import importlib
import itertools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from controller.deletion.pod_watch import PodWatch
from controller.kube.access import load_access
from controller.kube.client import KubeClient

_LAST_VERSION = 1_000_000


async def _ours(url: str, events: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kubeconfig"
        cluster = {"name": "replay", "cluster": {"server": url}}
        context = {"name": "replay", "context": {"cluster": "replay", "user": "replay"}}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [cluster],
                    "contexts": [context],
                    "users": [{"name": "replay", "user": {}}],
                    "current-context": "replay",
                }
            )
        )
        access = await load_access(kubeconfig=str(path), context=None, in_cluster=False)
        async with KubeClient(access) as client:
            watch = PodWatch(client)
            gc.collect()
            before, started = _resident_bytes(), time.monotonic()
            running = asyncio.create_task(watch.run())
            await watch.reflector.wait_synced()
            synced = time.monotonic()
            resident = _resident_bytes()
            last = str(_LAST_VERSION + events - 1)
            while _version(watch, events - 1) != last:  # noqa: ASYNC110 - asking costs the reader nothing
                await asyncio.sleep(0.002)
            ended = time.monotonic()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            pods = len(watch.reflector.items)
    return {
        "synced_seconds": synced - started,
        "pods": pods,
        "pods_a_second": events / (ended - synced),
        "bytes_a_pod": (resident - before) / pods,
    }


def _version(watch: PodWatch, number: int) -> str:
    found = watch.reflector.items.get(f"team-{number % 50}/set-{number}-0")
    return found.resource_version if found is not None else ""


def _official(url: str, events: int) -> dict[str, float]:
    kubernetes: Any = importlib.import_module("kubernetes")
    configuration = kubernetes.client.Configuration(host=url)
    api = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(configuration))
    started = time.monotonic()
    cache: dict[tuple[str, str], Any] = {}
    token = ""
    while True:
        page = api.list_pod_for_all_namespaces(limit=500, _continue=token or None)
        cache |= {(each.metadata.namespace, each.metadata.name): each for each in page.items}
        token = page.metadata._continue or ""
        if not token:
            break
    synced = time.monotonic()
    changes = kubernetes.watch.Watch().stream(api.list_pod_for_all_namespaces, resource_version="5")
    for _ in itertools.islice(changes, events):
        pass
    ended = time.monotonic()
    return {"synced_seconds": synced - started, "pods": len(cache), "pods_a_second": events / (ended - synced)}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Read and print."""
    way, url, events = sys.argv[1], sys.argv[2], int(sys.argv[3])
    figures = asyncio.run(_ours(url, events)) if way == "ours" else _official(url, events)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
