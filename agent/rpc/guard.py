"""The one way into every call: who may, how many at once, how errors look, what is counted.

Why this exists: none of the services repeats these rules, and none can forget one. The wrapped handlers are kept by
method, so that a call pays for the rules themselves and for nothing around them.
"""

from __future__ import annotations  # grpc's classes take type arguments in stubs only

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, NoReturn, cast

import grpc
from grpc.aio import AbortError, ServicerContext

from agent.rpc.authorization import Authorization
from agent.rpc.call_log import CallLog, is_wanted
from agent.rpc.errors import ApiError, abort
from agent.rpc.limits import NODE_WATCH, Kind, Room, is_read_in_parts, is_unlimited, kind_of
from agent.rpc.metrics import CallMetrics, MethodCalls
from agent.rpc.unread import UnreadAnswers, answer_not_read
from common.logging import fields

_LOG = logging.getLogger(__name__)

WRITE_SECONDS = 60.0

# Requests and answers are whatever the service's serializers take: the guard never looks at them.
Context = ServicerContext[Any, Any]
Unary = Callable[[Any, Context], Awaitable[Any]]
Stream = Callable[[Any, Context], AsyncGenerator[Any, None]]


class CallGuard(grpc.aio.ServerInterceptor):
    """Wraps every handler but those of health and reflection."""

    def __init__(self, authorization: Authorization, metrics: CallMetrics) -> None:
        self._authorization = authorization
        self._caller = authorization.identity
        self._metrics = metrics
        self._rooms = {kind: Room(kind) for kind in Kind}
        self._node_watchers: set[str] = set()
        self._unread = UnreadAnswers()
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        metrics.active = lambda: {room.kind.value: room.active for room in self._rooms.values()}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the guarded handler of a method."""
        method: str = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is not None:
            return guarded
        handler = await continuation(handler_call_details)
        # A method nobody serves has no handler; keeping an entry for each name asked for would grow without end.
        if handler is None or is_unlimited(method):
            return handler
        self._handlers[method] = guarded = self._guarded(method, handler)
        return guarded

    def _guarded(self, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        kind = kind_of(method)
        calls = self._metrics.of(method)
        if handler.unary_unary is not None and is_read_in_parts(method, kind):
            # The same on the wire, and the only way in which we, not the library, wait for the answer to be taken.
            return grpc.unary_stream_rpc_method_handler(
                self._stream(_as_stream(cast(Unary, handler.unary_unary)), method, kind, calls),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(cast(Unary, handler.unary_unary), method, kind, calls),
                handler.request_deserializer,
                handler.response_serializer,
            )
        if handler.unary_stream is None:
            raise TypeError(f"{method} streams requests, which no rule here covers")
        return grpc.unary_stream_rpc_method_handler(
            self._stream(cast(Stream, handler.unary_stream), method, kind, calls),
            handler.request_deserializer,
            handler.response_serializer,
        )

    def _unary(self, behavior: Unary, method: str, kind: Kind, calls: MethodCalls) -> Unary:
        room = self._rooms[kind]
        check = self._authorization.check

        async def guarded(request: object, context: Context) -> object:
            started = time.perf_counter()
            code = "OK"
            line = CallLog(method, kind, request, context) if is_wanted(kind) else None
            try:
                room.enter()
                try:
                    check(context, kind)
                    answer = await behavior(request, context)
                    if line is not None:
                        line.note(answer)
                        line.ended(code, self._caller(context))
                    return answer
                finally:
                    # Before the caller is told: telling a crowd that it is one must not keep others out.
                    room.active -= 1
            except BaseException as error:
                code = code_of(error)
                line = line or CallLog(method, kind, request, context)
                line.ended(code, self._caller(context), error)
                await _reported(error, context, line)
            finally:
                calls.finished(code, time.perf_counter() - started)

        return guarded

    def _stream(self, behavior: Stream, method: str, kind: Kind, calls: MethodCalls) -> Unary:
        # A coroutine that writes, not a generator: its `finally` runs when the call is cancelled, wherever it is.
        async def guarded(request: object, context: Context) -> None:
            started = time.perf_counter()
            code = "OK"
            line = CallLog(method, kind, request, context) if is_wanted(kind) else None
            try:
                self._authorization.check(context, kind)
                with self._admitted(kind, context, is_node_watch=method == NODE_WATCH) as room:
                    async with contextlib.aclosing(behavior(request, context)) as messages:
                        async for message in messages:
                            if line is not None:
                                line.note(message)
                            await _write_in_time(context, message, room)
                if line is not None:
                    line.ended(code, self._caller(context))
            except BaseException as error:
                code = code_of(error)
                line = line or CallLog(method, kind, request, context)
                line.ended(code, self._caller(context), error)
                with self._unread.holding(error, self._caller(context)):
                    await _reported(error, context, line)
            finally:
                if kind is Kind.READ:
                    calls.finished(code, time.perf_counter() - started)
                else:
                    calls.ended(code)

        return guarded

    @contextlib.contextmanager
    def _admitted(self, kind: Kind, context: Context, *, is_node_watch: bool) -> Iterator[Room | None]:
        """Take a place and give its room; the first watch of the node by each caller needs none.

        So a controller is never shut out, and never put out for somebody else.
        """
        caller = self._caller(context)
        if is_node_watch and caller not in self._node_watchers:
            self._node_watchers.add(caller)
            try:
                yield None
            finally:
                self._node_watchers.discard(caller)
            return
        if kind is not Kind.CHANGE:
            self._unread.check(caller)
        room = self._rooms[kind]
        room.enter()
        try:
            yield room
        finally:
            room.active -= 1


def _as_stream(behavior: Unary) -> Stream:
    async def parts(request: object, context: Context) -> AsyncGenerator[object, None]:
        yield await behavior(request, context)

    return parts


async def _write_in_time(context: Context, message: object, room: Room | None) -> None:
    """Send a part of an answer. Whoever reads nothing of it for long, or while others want in, gives the place back.

    They are told when they read on; until then their connection is all they have.
    """
    try:
        async with asyncio.timeout(WRITE_SECONDS) as limit:
            with room.sending(limit) if room is not None else contextlib.nullcontext():
                await context.write(message)
    except TimeoutError:
        raise answer_not_read() from None


def code_of(error: BaseException) -> str:
    """Return the status code's name that a call ending with this error is counted under."""
    if isinstance(error, ApiError):
        return error.code.name
    if isinstance(error, asyncio.CancelledError):
        return "CANCELLED"
    return "ABORTED" if isinstance(error, AbortError) else "INTERNAL"


async def _reported(error: BaseException, context: Context, line: CallLog) -> NoReturn:
    """Tell the caller what it may know; cancellation and an abort already made go on as they are."""
    if isinstance(error, ApiError):
        await abort(context, error)
    if isinstance(error, AbortError) or not isinstance(error, Exception):
        raise error
    _LOG.error("call failed", exc_info=error, extra=fields(peer=context.peer()))
    message = f"internal error; the agent's log has the details under request_id {line.request_id}"
    internal = ApiError(grpc.StatusCode.INTERNAL, "INTERNAL", message)
    await abort(context, internal)
