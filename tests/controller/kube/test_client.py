"""The API client against a server in trouble: what is repeated, what is not, and what the caller hears."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from controller.kube.access import Access
from controller.kube.client import APPLY_PATCH, KubeClient
from controller.kube.errors import (
    AlreadyExists,
    ApiUnavailable,
    Conflict,
    Forbidden,
    Gone,
    InvalidRequest,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
)
from controller.kube.retry import ONCE, Retry
from tests.support.waiting import wait_for_async

QUICK = Retry(attempts=4, first_delay_seconds=0.01, longest_delay_seconds=0.05)
QUICK_CREATE = Retry(attempts=4, first_delay_seconds=0.01, longest_delay_seconds=0.05, ambiguous=False)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str = "", message: str = "said so", **headers: str) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "code": code, "reason": reason, "message": message}
        return web.json_response(
            body, status=code, headers={key.replace("_", "-"): text for key, text in headers.items()}
        )

    return answer


def text(body: bytes, code: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=code)

    return answer


async def closed(request: web.Request) -> web.StreamResponse:
    """Close the connection without an answer."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def silent(_: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    return web.Response()


class Api:
    """A server that gives the next answer to each request, and the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.configuration: Any = Configuration()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


@contextlib.asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[tuple[Api, KubeClient]]:
    api = Api(*answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        api.configuration.host = f"http://{host}:{port}"
        async with KubeClient(Access(api.configuration, kubeconfig=None, context=None)) as client:
            yield api, client
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", InvalidRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", InvalidRequest),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", ServerError),
        (503, "ServiceUnavailable", ServerError),
        (418, "Teapot", KubeError),
    ],
)
async def test_every_refusal_has_its_class_and_says_what_was_asked(
    code: int, reason: str, kind: type[KubeError]
) -> None:
    async with serving(status(code, reason)) as (_, client):
        with pytest.raises(kind) as caught:
            await client.get_bytes("/api/v1/nodes/a", retry=ONCE)
    assert type(caught.value) is kind
    assert (caught.value.reason, caught.value.status_code) == (reason, code)
    assert "GET /api/v1/nodes/a: said so" in str(caught.value)


async def test_an_error_without_a_status_object_is_shown_cut() -> None:
    async with serving(text(b"<html>" + b"x" * 5000, 502)) as (_, client):
        with pytest.raises(ServerError) as caught:
            await client.get_bytes("/x", retry=ONCE)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("trouble", [status(429), status(500), status(503), status(504), closed])
async def test_a_repeatable_request_outlives_a_blip(trouble: Answer) -> None:
    """F13"""
    async with serving(trouble, trouble, text(b"{}")) as (api, client):
        assert await client.apply("/x", {"a": 1}, field_manager="m", retry=QUICK) == b"{}"
    assert len(api.requests) == 3


@pytest.mark.parametrize("trouble", [status(500), status(503), closed])
async def test_a_creation_is_not_repeated_when_it_may_have_happened(trouble: Answer) -> None:
    """F13"""
    async with serving(trouble, text(b"{}")) as (api, client):
        with pytest.raises((ServerError, ApiUnavailable)):
            await client.create("/x", {}, retry=QUICK_CREATE)
    assert len(api.requests) == 1


async def test_a_creation_that_was_turned_away_is_repeated() -> None:
    """F13"""
    async with serving(status(429), text(b"{}")) as (api, client):
        await client.create("/x", {}, retry=QUICK_CREATE)
    assert len(api.requests) == 2


@pytest.mark.parametrize("trouble", [status(409, "Conflict"), status(404), status(403), status(422)])
async def test_a_refusal_is_never_repeated(trouble: Answer) -> None:
    async with serving(trouble) as (api, client):
        with pytest.raises(KubeError):
            await client.merge_patch("/x", {}, retry=QUICK)
    assert len(api.requests) == 1


async def test_a_wish_for_a_long_pause_is_handed_to_the_caller() -> None:
    """F13: 429 with Retry-After."""
    async with serving(status(429, Retry_After="17")) as (api, client):
        with pytest.raises(TooManyRequests) as caught:
            await client.get_bytes("/x", retry=QUICK)
    assert caught.value.retry_after_seconds == 17
    assert len(api.requests) == 1


@pytest.mark.parametrize("wish", ["soon", "nan", "inf", "-3", ""])
async def test_a_nonsensical_wish_is_none(wish: str) -> None:
    async with serving(status(429, Retry_After=wish)) as (_, client):
        with pytest.raises(TooManyRequests) as caught:
            await client.get_bytes("/x", retry=ONCE)
    assert caught.value.retry_after_seconds == 0


async def test_no_answer_within_the_time_is_said() -> None:
    async with serving(silent) as (_, client):
        with pytest.raises(ApiUnavailable) as caught:
            await client.get_bytes("/x", timeout_seconds=0.1, retry=ONCE)
    assert caught.value.reason == "Timeout"


async def test_nobody_listening_is_said() -> None:
    configuration: Any = Configuration()
    configuration.host = "http://127.0.0.1:1"
    async with KubeClient(Access(configuration, kubeconfig=None, context=None)) as client:
        with pytest.raises(ApiUnavailable):
            await client.get_bytes("/x", retry=ONCE)


async def test_a_cancelled_request_ends() -> None:
    async with serving(silent) as (api, client):
        task = asyncio.create_task(client.get_bytes("/x"))
        await wait_for_async(lambda: api.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_requests_carry_what_the_api_needs() -> None:
    async with serving(text(b"{}")) as (api, client):
        api.configuration.api_key["BearerToken"] = "Bearer secret\n"
        await client.apply("/api/v1/nodes/a", {"k": "ü"}, field_manager="m x")
        await client.delete("/api/v1/nodes/a", uid="u", grace_period_seconds=0)
        await client.replace("/y", b'{"ready": true}')
    (method, path, headers, sent), (_, _, _, options), (_, _, _, raw) = api.requests
    assert (method, path) == ("PATCH", "/api/v1/nodes/a?fieldManager=m+x&force=true")
    assert headers["Content-Type"] == APPLY_PATCH
    assert headers["Authorization"] == "Bearer secret"
    assert sent == '{"k":"ü"}'.encode()
    assert b'"preconditions":{"uid":"u"}' in options
    assert b'"gracePeriodSeconds":0' in options
    assert raw == b'{"ready": true}'


async def test_credentials_that_ran_out_are_read_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reloads = []

    async def reload(self: Access) -> None:
        reloads.append(self)

    monkeypatch.setattr(Access, "reload", reload)
    async with serving(status(401), text(b"{}")) as (api, client):
        assert await client.get_bytes("/x") == b"{}"
        api.answers = [status(401)]
        with pytest.raises(Unauthorized):
            await client.get_bytes("/x")
    assert len(reloads) == 1


async def test_requests_refused_together_share_one_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    reloads = []

    async def reload(self: Access) -> None:
        await asyncio.sleep(0)
        reloads.append(self)

    monkeypatch.setattr(Access, "reload", reload)
    async with serving(*[status(401)] * 5, text(b"{}")) as (_, client):
        assert await asyncio.gather(*[client.get_bytes("/x") for _ in range(5)]) == [b"{}"] * 5
    assert len(reloads) == 1


async def test_renewed_credentials_are_those_of_lean_requests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate belongs to the connection: a renewed one needs new connections of every kind."""
    made = []

    async def reload(self: Access) -> None:
        """Nothing to read."""

    def ssl_context(self: Access) -> None:
        made.append(self)

    monkeypatch.setattr(Access, "reload", reload)
    monkeypatch.setattr(Access, "ssl_context", ssl_context)
    async with serving(text(b"{}"), status(401), text(b'{"new":1}')) as (_, client):
        await client.get_bytes("/x")
        assert len(made) == 1
        assert await client.replace("/x", {}, lean=True) == b'{"new":1}'
        assert len(made) == 2


async def test_a_stream_gives_its_pieces_and_ends() -> None:
    async with serving(text(b"one\ntwo\n")) as (_, client), client.stream_bytes("/x") as pieces:
        assert b"".join([piece async for piece in pieces]) == b"one\ntwo\n"


async def test_a_silent_stream_is_given_up() -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half a li")
        await asyncio.Event().wait()
        return response

    async with serving(half) as (_, client):
        async with client.stream_bytes("/x", inactivity_seconds=0.2) as pieces:
            assert await anext(pieces) == b"half a li"
            with pytest.raises(ApiUnavailable) as caught:
                await anext(pieces)
        assert caught.value.reason == "Timeout"


async def one_piece(request: web.Request) -> web.StreamResponse:
    """Send one piece and nothing after it."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"one\n")
    return await silent(request)


@pytest.mark.parametrize("stream", [pytest.param(one_piece, id="open"), pytest.param(silent, id="being opened")])
async def test_a_stream_that_was_silent_while_requests_failed_is_given_up(stream: Answer) -> None:
    """F13: a half-open connection says nothing, and its reader would wait for the inactivity limit."""
    heard = asyncio.Event()

    async def read() -> None:
        async with client.stream_bytes("/watch") as pieces:
            await anext(pieces)
            heard.set()
            await anext(pieces)

    async with serving(stream, silent, text(b"{}")) as (api, client):
        reader = asyncio.create_task(read())
        await wait_for_async(heard.is_set if stream is one_piece else lambda: bool(api.requests), 10)
        with pytest.raises(ApiUnavailable):
            await client.get_bytes("/x", timeout_seconds=0.1, retry=ONCE)
        assert not reader.done()
        await client.get_bytes("/x")
        with pytest.raises(ApiUnavailable) as caught:
            await asyncio.wait_for(reader, 10)
    assert caught.value.reason == "Timeout"


async def test_a_refused_stream_has_its_class() -> None:
    async with serving(status(410, "Expired")) as (_, client):
        with pytest.raises(Gone):
            async with client.stream_bytes("/x"):
                raise AssertionError("not reached")


def test_pauses_grow_and_never_undercut_the_server() -> None:
    retry = Retry(first_delay_seconds=0.2, longest_delay_seconds=5.0)
    for attempt, most in ((1, 0.2), (2, 0.4), (10, 5.0)):
        pause = retry.delay_seconds(attempt, ServerError("x"))
        assert most / 2 <= pause <= most
    assert retry.delay_seconds(1, TooManyRequests("x", retry_after_seconds=3.0)) == 3.0
