"""Limits, errors and counts of every call, over a real connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships without types
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships without types

from agent.rpc import guard, limits
from agent.rpc.authorization import Authorization
from agent.rpc.errors import DETAILS_KEY, ApiError, invalid_field
from agent.rpc.guard import CallGuard
from agent.rpc.limits import LIMITS, Kind, Room, kind_of
from agent.rpc.metrics import CallMetrics
from cocoonstack.node.v1 import node_resources_pb2, snapshot_cache_pb2
from tests.support.waiting import wait_for_async

NODE = "cocoonstack.node.v1.NodeResources"
SNAPSHOTS = "cocoonstack.node.v1.SnapshotCache"
Serving = Callable[..., Any]


class Waiting:
    """Handlers that run until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended = 0

    async def unary(self, _request: bytes, _context: object) -> bytes:
        try:
            await self.gate.wait()
        finally:
            self.ended += 1
        return b""

    async def stream(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await self.gate.wait()
        finally:
            self.ended += 1

    def services(self) -> dict[str, Any]:
        unary: Any = grpc.unary_unary_rpc_method_handler(self.unary)
        stream: Any = grpc.unary_stream_rpc_method_handler(self.stream)
        return {
            NODE: {"GetNodeResources": unary, "WatchNodeResources": stream},
            SNAPSHOTS: {"PurgeSnapshots": unary, "WatchSnapshots": stream},
        }


def details_of(error: grpc.aio.AioRpcError) -> tuple[Any, list[Any]]:
    """Return the ErrorInfo and the field violations of an error."""
    encoded = dict(error.trailing_metadata() or ()).get(DETAILS_KEY)
    status = status_pb2.Status.FromString(encoded)
    assert status.code == error.code().value[0]
    info, violations = error_details_pb2.ErrorInfo(), []
    for detail in status.details:
        if not detail.Unpack(info):
            bad_request = error_details_pb2.BadRequest()
            assert detail.Unpack(bad_request)
            violations = list(bad_request.field_violations)
    return info, violations


def test_every_method_has_the_kind_the_api_says() -> None:
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in (node_resources_pb2.DESCRIPTOR, snapshot_cache_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    kinds = {method.rpartition("/")[2]: kind_of(method) for method in methods}
    assert {name for name, kind in kinds.items() if kind is Kind.WATCH} == {"WatchNodeResources", "WatchSnapshots"}
    assert {name for name, kind in kinds.items() if kind is Kind.CHANGE} == {
        "SyncOwners",
        "RetainSnapshots",
        "ReleaseRetention",
        "PurgeSnapshots",
        "CollectGarbage",
    }
    assert {kind: LIMITS[kind] for kind in Kind} == {Kind.READ: 64, Kind.CHANGE: 16, Kind.WATCH: 32}


@pytest.mark.parametrize(
    ("method", "kind"), [(f"/{NODE}/GetNodeResources", Kind.READ), (f"/{SNAPSHOTS}/PurgeSnapshots", Kind.CHANGE)]
)
async def test_calls_beyond_the_limit_are_refused_and_others_go_on(serving: Serving, method: str, kind: Kind) -> None:
    """F21: a full kind refuses its own; health and the other kinds answer; places are given back."""
    waiting = Waiting()
    running = await serving(waiting.services())
    call = running.channel.unary_unary(method)
    calls = [call(b"") for _ in range(LIMITS[kind])]
    await wait_for_async(lambda: running.active()[kind.value] == LIMITS[kind])

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    info, _ = details_of(caught.value)
    assert (info.reason, info.domain) == ("TOO_MANY_REQUESTS", "node.cocoonstack.io")
    assert info.metadata["limit"] == str(LIMITS[kind])
    health = await health_pb2_grpc.HealthStub(running.channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING

    waiting.gate.set()
    await asyncio.gather(*calls)
    assert await call(b"") == b""
    assert running.active()[kind.value] == 0


class Unread:
    """A context whose caller takes nothing before the gate is opened."""

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    async def write(self, _message: object) -> None:
        await self._gate.wait()


@pytest.mark.parametrize("kind", Kind)
async def test_a_place_whose_answer_is_not_read_goes_to_who_wants_it(
    monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """The oldest first, and none that only just began; without a place there is nothing to lose."""
    room, gate = Room(kind), asyncio.Event()

    async def answer(room: Room | None) -> str:
        if room is not None:
            room.enter()
        try:
            await guard._write_in_time(cast(Any, Unread(gate)), b"", room)
        except ApiError as error:
            return error.reason
        finally:
            if room is not None:
                room.active -= 1
        return "read"

    placeless = asyncio.create_task(answer(None))
    answers = [asyncio.create_task(answer(room)) for _ in range(LIMITS[kind])]
    await wait_for_async(lambda: len(room._sending) == LIMITS[kind])
    with pytest.raises(ApiError, match="try again"):
        room.enter()
    monkeypatch.setattr(limits, "SLOW_SECONDS", 0.0)
    room.enter()
    assert await answers[0] == "ANSWER_NOT_READ"
    assert room.active == LIMITS[kind]
    gate.set()
    assert await asyncio.gather(placeless, *answers[1:]) == ["read"] * LIMITS[kind]
    assert (room.active, room._sending) == (1, {})


class SlowToTell:
    """The context of a caller that takes its refusal only when the gate opens."""

    def __init__(self, gate: asyncio.Event) -> None:
        self._gate = gate

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def abort(self, *_: object) -> None:
        await self._gate.wait()
        raise grpc.aio.AbortError


class NobodyMay(Authorization):
    """Refuses every caller."""

    def check(self, context: object, kind: Kind) -> None:  # noqa: ARG002 - as the one it replaces
        raise ApiError(grpc.StatusCode.PERMISSION_DENIED, "NOT_AUTHORIZED", f"nobody may make {kind.value}")


EVERYBODY = Authorization((), (), mutual_tls=False)
NOBODY = NobodyMay((), (), mutual_tls=False)


@pytest.mark.parametrize(
    ("authorization", "running"), [(EVERYBODY, LIMITS[Kind.CHANGE]), (NOBODY, 0)], ids=["too many", "not authorized"]
)
async def test_who_is_refused_takes_no_room(authorization: Authorization, running: int) -> None:
    """F21: a crowd of refused callers, however slowly they are told, keeps nobody else out."""
    waiting, told, metrics = Waiting(), asyncio.Event(), CallMetrics()
    unguarded = waiting.services()[SNAPSHOTS]["PurgeSnapshots"]

    async def found(_: object) -> object:
        return unguarded

    guard: Any = CallGuard(authorization, metrics)
    handler = await guard.intercept_service(found, SimpleNamespace(method=f"/{SNAPSHOTS}/PurgeSnapshots"))
    calls = [asyncio.create_task(handler.unary_unary(b"", SlowToTell(told))) for _ in range(3 * LIMITS[Kind.CHANGE])]
    await asyncio.sleep(0)
    assert metrics.active()["changes"] == running
    told.set()
    waiting.gate.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert outcomes[:running] == [b""] * running
    assert all(isinstance(outcome, grpc.aio.AbortError) for outcome in outcomes[running:])
    assert metrics.active()["changes"] == 0


async def test_watches_beyond_the_limit_are_refused_but_a_callers_first_of_the_node(serving: Serving) -> None:
    waiting = Waiting()
    running = await serving(waiting.services())
    watch_snapshots = running.channel.unary_stream(f"/{SNAPSHOTS}/WatchSnapshots")
    watch_node = running.channel.unary_stream(f"/{NODE}/WatchNodeResources")
    watches = [watch_snapshots(b"") for _ in range(LIMITS[Kind.WATCH])]
    for watch in watches:
        assert await watch.read() == b"first"

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch_snapshots(b"").read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    first = watch_node(b"")
    assert await first.read() == b"first"
    with pytest.raises(grpc.aio.AioRpcError):
        await watch_node(b"").read()

    for watch in (*watches, first):
        watch.cancel()
    await wait_for_async(lambda: waiting.ended == LIMITS[Kind.WATCH] + 1 and not running.active()["watches"])
    again = watch_node(b"")
    assert await again.read() == b"first"
    again.cancel()


@pytest.mark.parametrize("method", ["GetNodeResources", "PurgeSnapshots"])
async def test_a_cancelled_call_gives_its_place_back(serving: Serving, method: str) -> None:
    waiting = Waiting()
    running = await serving(waiting.services())
    path = f"/{NODE if method.startswith('Get') else SNAPSHOTS}/{method}"
    call = running.channel.unary_unary(path)(b"")
    await wait_for_async(lambda: sum(running.active().values()) == 1)
    call.cancel()
    await wait_for_async(lambda: sum(running.active().values()) == 0)
    assert waiting.ended == 1
    assert running.metrics.of(path).codes == {"CANCELLED": 1}


async def test_a_deadline_ends_the_call_on_the_server_too(serving: Serving) -> None:
    waiting = Waiting()
    running = await serving(waiting.services())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await running.channel.unary_unary(f"/{NODE}/GetNodeResources")(b"", timeout=0.2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await wait_for_async(lambda: waiting.ended == 1)


class Failing:
    """Handlers that raise what the test says."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def unary(self, _request: bytes, _context: object) -> bytes:
        raise self.error

    async def stream(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        yield b"first"
        raise self.error

    def services(self) -> dict[str, Any]:
        return {
            NODE: {
                "GetNodeResources": grpc.unary_unary_rpc_method_handler(self.unary),
                "WatchNodeResources": grpc.unary_stream_rpc_method_handler(self.stream),
            }
        }


async def both_errors(running: Any) -> list[grpc.aio.AioRpcError]:  # noqa: ANN401  # the fixture's object
    with pytest.raises(grpc.aio.AioRpcError) as unary:
        await running.channel.unary_unary(f"/{NODE}/GetNodeResources")(b"")
    watch = running.channel.unary_stream(f"/{NODE}/WatchNodeResources")(b"")
    assert await watch.read() == b"first"
    with pytest.raises(grpc.aio.AioRpcError) as stream:
        await watch.read()
    return [unary.value, stream.value]


async def test_an_api_error_reaches_the_caller_whole(serving: Serving) -> None:
    error = invalid_field("INVALID_NAME", "name", "../x\n" + "y" * 500, "must be a snapshot's name")
    running = await serving(Failing(error).services())
    for caught in await both_errors(running):
        assert caught.code() is grpc.StatusCode.INVALID_ARGUMENT
        message = caught.details() or ""
        assert message.startswith('name "../x\\n')
        assert len(message) < 200
        info, violations = details_of(caught)
        assert (info.reason, info.domain) == ("INVALID_NAME", "node.cocoonstack.io")
        assert [(each.field, each.description) for each in violations] == [("name", "must be a snapshot's name")]
    assert running.metrics.of(f"/{NODE}/GetNodeResources").codes == {"INVALID_ARGUMENT": 1}


async def test_metadata_of_an_error_arrives(serving: Serving) -> None:
    error = ApiError(
        grpc.StatusCode.FAILED_PRECONDITION, "STALE_CONTROLLER_EPOCH", "too old", metadata={"highest_epoch": "7"}
    )
    running = await serving(Failing(error).services())
    for caught in await both_errors(running):
        assert details_of(caught)[0].metadata["highest_epoch"] == "7"


async def test_what_nobody_foresaw_is_logged_once_and_told_without_details(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    running = await serving(Failing(RuntimeError("secret path /etc/shadow")).services())
    with caplog.at_level(logging.ERROR):
        caught = await both_errors(running)
    for error in caught:
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (error.details() or "")
        assert details_of(error)[0].reason == "INTERNAL"
    assert [record.message for record in caplog.records if record.name.startswith("agent")] == ["call failed"] * 2


async def test_a_method_nobody_serves_is_unimplemented_and_leaves_nothing_behind(serving: Serving) -> None:
    running = await serving(Failing(RuntimeError()).services())
    for number in range(50):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.channel.unary_unary(f"/{NODE}/Unknown{number}")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert running.metrics.methods == {}
