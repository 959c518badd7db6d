"""A stand-in for the API server's list and watch, for what a real one does only when it is in trouble.

Each request takes the next step of a script; a step is a function of the request. Used where a test needs cut lines,
half lists or errors on demand; everything else is tested against the real API server.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from aiohttp import web
from kubernetes.aio.client import Configuration

from controller.kube.access import Access
from controller.kube.client import KubeClient

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


def item(name: str, version: int, uid: str = "", **fields: object) -> dict[str, object]:
    """Return one small object."""
    metadata = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata, **fields}


def page(items: Sequence[object], version: int, next_token: str = "", after: str = "") -> Step:
    """Answer a list with these items; the request's continue token must be `after`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert "watch" not in request.query, f"a watch where a list was expected: {request.query_string}"
        assert request.query.get("continue", "") == after, request.query_string
        meta = {"resourceVersion": str(version)} | ({"continue": next_token} if next_token else {})
        return web.json_response({"metadata": meta, "items": list(items)})

    return answer


def failure(code: int, reason: str = "", retry_after: str = "") -> Step:
    """Answer with an error Status."""

    async def answer(_: web.Request) -> web.StreamResponse:
        headers = {"Retry-After": retry_after} if retry_after else {}
        return web.json_response({"kind": "Status", "code": code, "reason": reason}, status=code, headers=headers)

    return answer


def raw(body: bytes) -> Step:
    """Answer 200 with these bytes."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return answer


def event(kind: str, obj: object) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def watch(*chunks: bytes, since: int | None = None, then: str = "end") -> Step:
    """Answer a watch with these chunks, then `end` it, `cut` the connection, or stay `open` and silent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query.get("watch") == "1", f"a list where a watch was expected: {request.query_string}"
        if since is not None:
            assert request.query["resourceVersion"] == str(since)
        assert request.query["allowWatchBookmarks"] == "true"
        assert 300 <= int(request.query["timeoutSeconds"]) <= 600
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then == "open":
            await asyncio.Event().wait()
        if then == "cut" and request.transport is not None:
            request.transport.abort()
        return response

    return answer


class ScriptedApi:
    """Serves the steps in order on loopback; after the last one, watches stay open and lists answer 503."""

    def __init__(self, *steps: Step) -> None:
        """Take the script."""
        self.steps = list(steps)
        self.requests: list[str] = []
        self.errors: list[BaseException] = []
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        """Start on a free port."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop; a request that did not match its step fails the test here."""
        if self._runner is not None:
            await self._runner.cleanup()
        if self.errors:
            raise self.errors[0]

    def client(self) -> KubeClient:
        """Return the controller's own client for this server."""
        configuration: Any = Configuration(host=self.url)
        return KubeClient(Access(configuration, kubeconfig=None, context=None))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.query_string)
        step = self.steps.pop(0) if self.steps else _afterwards
        try:
            return await step(request)
        except (AssertionError, KeyError) as error:
            self.errors.append(error)
            raise


async def _afterwards(request: web.Request) -> web.StreamResponse:
    if "watch" in request.query:
        return await watch(then="open")(request)
    return web.json_response({"code": 503}, status=503)
