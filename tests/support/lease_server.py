"""A Lease as an API server keeps it, in memory, and a client that can be disturbed: for elections in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from controller.kube.errors import AlreadyExists, ApiUnavailable, Conflict, NotFound
from controller.kube.retry import ONCE, Retry

Json = dict[str, Any]


class LeaseServer:
    """One Lease, or none."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0

    def put(self, lease: Json) -> bytes:
        """Keep this state of the Lease under the next resource version."""
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        return json.dumps(lease).encode()


class LeaseClient:
    """One candidate's way to the server.

    `fault` is asked before a request is carried out and after: it raises, or returns seconds to wait, or None.
    """

    def __init__(self, server: LeaseServer, fault: Callable[[str], float | None] | None = None) -> None:
        self.server = server
        self.fault = fault

    async def get_bytes(self, path: str, *, timeout_seconds: float = 10, retry: Retry = ONCE) -> bytes:
        """GET the Lease."""
        return await self._within(path, timeout_seconds, retry, self._get)

    async def create(self, path: str, body: object, *, timeout_seconds: float = 10, retry: Retry = ONCE) -> bytes:
        """POST the Lease."""
        return await self._within(path, timeout_seconds, retry, lambda: self._create(cast("Json", body)))

    async def merge_patch(
        self,
        path: str,
        body: object,
        *,
        timeout_seconds: float = 10,
        retry: Retry = ONCE,
        lean: bool = False,  # noqa: ARG002 - this way has no HTTP
    ) -> bytes:
        """Merge-patch the Lease."""
        return await self._within(path, timeout_seconds, retry, lambda: self._patch(cast("Json", body)))

    async def _within(self, path: str, seconds: float, retry: Retry, work: Callable[[], bytes]) -> bytes:
        assert "/leases" in path
        assert retry is ONCE, "a repetition could outlive the right to act"
        try:
            async with asyncio.timeout(seconds):
                await self._disturb("before")
                answer = work()
                await self._disturb("after")
                return answer
        except TimeoutError:
            raise ApiUnavailable("no answer", reason="Timeout") from None

    async def _disturb(self, when: str) -> None:
        seconds = self.fault(when) if self.fault is not None else None
        if seconds is not None:
            await asyncio.sleep(seconds)

    def _get(self) -> bytes:
        if self.server.lease is None:
            raise NotFound("no lease")
        return json.dumps(self.server.lease).encode()

    def _create(self, body: Json) -> bytes:
        if self.server.lease is not None:
            raise AlreadyExists("there is one")
        return self.server.put(json.loads(json.dumps(body)))

    def _patch(self, body: Json) -> bytes:
        if self.server.lease is None:
            raise NotFound("no lease")
        lease = json.loads(json.dumps(self.server.lease))
        if body["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            raise Conflict("changed")
        lease["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations", {}))
        lease["spec"] |= body["spec"]
        return self.server.put(lease)
