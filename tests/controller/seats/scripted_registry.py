"""A registry on loopback that answers as it is told: for answers that a good registry gives only in trouble."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]

VM = "vk-default-web-0"
REPOSITORY = f"vms/{VM}"
MANIFEST_PATH = f"/v2/{REPOSITORY}/manifests/hibernate"
SNAPSHOT_TYPE = "application/vnd.cocoonstack.snapshot.v1+json"
CONFIG_TYPE = "application/vnd.cocoonstack.snapshot.config.v1+json"
CONFIG = json.dumps({"snapshotId": "0123abcd", "hypervisor": "none", "cpu": 1}).encode()


def digest(content: bytes) -> str:
    """Return a digest as registries write it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def manifest(artifact_type: str | None = SNAPSHOT_TYPE, config_type: str = CONFIG_TYPE) -> bytes:
    """Return the manifest of a snapshot whose config blob is `CONFIG`."""
    body: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": config_type, "digest": digest(CONFIG), "size": len(CONFIG)},
        "layers": [],
    }
    return json.dumps(body | ({"artifactType": artifact_type} if artifact_type is not None else {})).encode()


def reply(status: int = 200, body: bytes | str = b"", **headers: str) -> Reply:
    """Answer with these; `_` in names of headers stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = body.encode() if isinstance(body, str) else body

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, body=content, headers=named)

    return answer


def error(status: int, code: str = "", **headers: str) -> Reply:
    """Answer with a registry's error body, or with a page when there is no code."""
    body = json.dumps({"errors": [{"code": code, "message": "hush-hush"}]}) if code else "<html>no</html>"
    return reply(status, body, **headers)


async def hang(_: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError


async def cut(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    """Answer 200 with a body that does not end."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


@dataclass
class ScriptedRegistry:
    """`replies` maps `METHOD path` to what is answered, one after the other, the last for ever.

    What is asked for beside them is 404 with a page. `seen` are the requests: method, path with query, Authorization.
    """

    replies: dict[str, list[Reply]] = field(default_factory=dict)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    forms: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def base(self) -> str:
        """What a client is configured with."""
        return f"{self.url}/vms"

    def on(self, request: str, *replies: Reply) -> None:
        """Answer `METHOD path` so."""
        self.replies[request] = list(replies)

    def on_manifest(self, *replies: Reply, method: str = "GET") -> None:
        """Answer for the manifest of the VM so."""
        self.on(f"{method} {MANIFEST_PATH}", *replies)

    def with_snapshot(self) -> None:
        """Have the snapshot, its manifest and its config blob."""
        self.on_manifest(reply(200, manifest()))
        self.on(f"GET /v2/{REPOSITORY}/blobs/{digest(CONFIG)}", reply(200, CONFIG))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((request.method, request.path_qs, request.headers.get("Authorization", "")))
        if request.method == "POST":
            self.forms.append({key: str(value) for key, value in (await request.post()).items()})
        replies = self.replies.get(f"{request.method} {request.path}", [reply(404, "<html>nothing here</html>")])
        chosen = replies.pop(0) if len(replies) > 1 else replies[0]
        return await chosen(request)

    @asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[None]:
        """Serve on a free port."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, 0, ssl_context=context)
            await site.start()
            port = runner.addresses[0][1]
            self.url = f"{'https' if context else 'http'}://{host}:{port}"
            yield
        finally:
            await runner.cleanup()
