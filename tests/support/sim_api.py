"""Pods and CocoonSets as an API server serves them, in memory and in virtual time, with a client that meets trouble.

List, watch, bookmark-free resume, versions that are too old, uncached reads: what a reflector and a reconciler see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from controller.kube.errors import ApiUnavailable, Gone, KubeError, NotFound, ServerError

Json = dict[str, Any]

PODS = "/api/v1/pods"
SETS = "/apis/cocoonset.cocoonstack.io/v1/cocoonsets"


class SimApi:
    """The truth. `objects` maps a collection and `namespace/name` to the object as it is now."""

    def __init__(self) -> None:
        self.version = 10
        self.oldest = 10
        self.objects: dict[str, dict[str, Json]] = {PODS: {}, SETS: {}}
        self.history: list[tuple[int, str, str, Json]] = []
        self._changed = asyncio.Condition()
        self._uids = 0

    def uid(self) -> str:
        """Return a UID nothing else has."""
        self._uids += 1
        return f"uid-{self._uids}"

    async def put(self, collection: str, obj: Json) -> Json:
        """Create or change an object."""
        key = f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
        before = self.objects[collection].get(key)
        kind = "ADDED" if before is None or _hidden(collection, before) else "MODIFIED"
        return await self._record(collection, key, kind, obj)

    async def remove(self, collection: str, key: str) -> None:
        """Remove an object; its last state is what watches show."""
        obj = self.objects[collection].get(key)
        if obj is not None:
            await self._record(collection, key, "DELETED", obj)

    async def _record(self, collection: str, key: str, kind: str, obj: Json) -> Json:
        self.version += 1
        obj = json.loads(json.dumps(obj))
        obj["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self.objects[collection][key]
        else:
            self.objects[collection][key] = obj
        if not _hidden(collection, obj):
            self.history.append((self.version, collection, kind, obj))
        async with self._changed:
            self._changed.notify_all()
        return obj

    def forget_history(self) -> None:
        """Make every version before now too old."""
        self.history.clear()
        self.oldest = self.version

    async def wait_after(self, version: int) -> None:
        """Return when something happened after this version."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)

    def listed(self, collection: str) -> list[Json]:
        """Return what a list shows now."""
        return [obj for obj in self.objects[collection].values() if not _hidden(collection, obj)]


def _hidden(collection: str, obj: Json) -> bool:
    return collection == PODS and not obj["spec"].get("nodeName")


class SimClient:
    """One controller's way to the API. `trouble` is how likely a request meets a fault, from 0 to 1."""

    def __init__(self, api: SimApi, chance: random.Random, trouble: Callable[[], float]) -> None:
        self.api = api
        self.chance = chance
        self.trouble = trouble

    async def get_bytes(self, path: str, query: Mapping[str, str] | None = None, **_: object) -> bytes:
        """GET a list or one object."""
        assert path != PODS or query is None or query["fieldSelector"] == "spec.nodeName!=", "a filter hides pods"
        await self._disturb()
        body = self._read(path)
        await self._disturb()
        return body

    def _read(self, path: str) -> bytes:
        if path in self.api.objects:
            items = self.api.listed(path)
            return json.dumps({"metadata": {"resourceVersion": str(self.api.version)}, "items": items}).encode()
        head, _, rest = path.partition("/namespaces/")
        namespace, collection, name = rest.split("/")
        obj = self.api.objects[f"{head}/{collection}"].get(f"{namespace}/{name}")
        if obj is None:
            error = NotFound(f"{name} not found", reason="NotFound")
            error.object_name = name
            raise error
        return json.dumps(obj).encode()

    @contextlib.asynccontextmanager
    async def stream_bytes(
        self, path: str, query: Mapping[str, str], inactivity_seconds: float = 70.0
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch."""
        await self._disturb()
        since = int(query["resourceVersion"])
        if since < self.api.oldest:
            raise Gone("too old")
        yield self._events(path, since, inactivity_seconds)

    async def _events(self, path: str, since: int, inactivity_seconds: float) -> AsyncIterator[bytes]:
        while True:
            if since < self.api.oldest:
                status = {"kind": "Status", "code": 410, "reason": "Expired"}
                yield json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
                return
            for version, collection, kind, obj in [each for each in self.api.history if each[0] > since]:
                since = version
                if collection != path:
                    continue
                line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
                if self.chance.random() < self.trouble() / 4:
                    yield line[: len(line) // 2]
                    return
                yield line
            since = max(since, self.api.version)
            try:
                async with asyncio.timeout(min(inactivity_seconds, self.chance.uniform(5, 60))):
                    await self.api.wait_after(since)
            except TimeoutError:
                if self.chance.random() < self.trouble():
                    return
            await asyncio.sleep(self.chance.uniform(0, 0.05))

    async def _disturb(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.02))
        trouble = self.trouble()
        if self.chance.random() >= trouble:
            return
        kind = self.chance.randrange(4)
        if kind == 0:
            raise ApiUnavailable("connection closed")
        if kind == 1:
            raise ServerError("etcd has no leader", status_code=500)
        if kind == 2:
            raise KubeError("forbidden by an odd webhook", reason="Odd")
        await asyncio.sleep(self.chance.uniform(0, 8))
