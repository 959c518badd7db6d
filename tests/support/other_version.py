"""The API as a neighbouring minor version has it, and programs of that version made of ours.

The committed descriptor set is changed here: the next version has more fields in every message and one more value in
every enum, the previous one lacks the newest field of every message. `VersionProxy` stands before a real agent and
rewrites what passes in one of them, so that bytes of another version reach real programs over real connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from devenv.proto import DESCRIPTOR_SET

PACKAGE = "cocoonstack.node.v1"
NEXT_TEXT, NEXT_NUMBER, NEXT_PART, NEXT_LIST = "next_text", "next_number", "next_part", "next_list"
"""Fields that the next version has in every message."""

Rewrite = Callable[[str, bytes], bytes]
"""From a message's full name and its bytes to other bytes."""

_STREAMS = {"WatchNodeResources", "WatchSnapshots", "CollectGarbage"}
_SERVER_OPTIONS = (
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)


def as_it_is(name: str, payload: bytes) -> bytes:
    """Change nothing."""
    del name
    return payload


class Api:
    """One version of the API: its messages by full name, without their package."""

    def __init__(self, files: FileDescriptorSet) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            self._pool.Add(file)

    def parse(self, name: str, payload: bytes) -> Any:  # noqa: ANN401 - a class made while the test runs
        """Return the message of this version that these bytes are."""
        kind = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        return kind.FromString(payload)

    def methods(self) -> Mapping[str, tuple[str, str]]:
        """Return the names of request and answer by method path."""
        found = {}
        for service in ("NodeResources", "SnapshotCache"):
            for method in self._pool.FindServiceByName(f"{PACKAGE}.{service}").methods:
                found[f"/{PACKAGE}.{service}/{method.name}"] = (method.input_type.name, method.output_type.name)
        return found


def next_version() -> Api:
    """Return the API in which every message has more fields and every enum one more value."""
    files = _committed()
    for message in _messages(files):
        number = max((field.number for field in message.field), default=0) + 1
        for offset, (name, kind) in enumerate(
            (
                (NEXT_TEXT, FieldDescriptorProto.TYPE_STRING),
                (NEXT_NUMBER, FieldDescriptorProto.TYPE_INT64),
                (NEXT_LIST, FieldDescriptorProto.TYPE_INT32),
                (NEXT_PART, FieldDescriptorProto.TYPE_MESSAGE),
            )
        ):
            label = FieldDescriptorProto.LABEL_REPEATED if name == NEXT_LIST else FieldDescriptorProto.LABEL_OPTIONAL
            added = message.field.add(name=name, number=number + offset, type=kind, label=label)
            if name == NEXT_PART:
                added.type_name = ".google.protobuf.Timestamp"
    for file in files.file:
        for enum in file.enum_type if file.package == PACKAGE else ():
            enum.value.add(name=f"{enum.value[0].name}_NEXT", number=max(value.number for value in enum.value) + 1)
    return Api(files)


def previous_version(kept: frozenset[str] = frozenset()) -> Api:
    """Return the API in which every message lacks its newest field, but those `kept` (`Message.field`) and pairs."""
    files = _committed()
    for message in _messages(files):
        newest = max(message.field, key=lambda field: field.number, default=None)
        if newest is None or len(message.field) <= 2 or f"{message.name}.{newest.name}" in kept:
            continue
        if newest.proto3_optional:
            message.oneof_decl.pop(newest.oneof_index)
        message.field.remove(newest)
    return Api(files)


def fill(message: Message) -> None:
    """Set everything that only the next version has, in this message and in all below it."""
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.file.package != PACKAGE or _is_map(field):
            continue
        for part in value if field.is_repeated else (value,):
            fill(part)
    added = set(message.DESCRIPTOR.fields_by_name)
    if NEXT_TEXT in added:
        setattr(message, NEXT_TEXT, "only a newer version knows this")
        setattr(message, NEXT_NUMBER, 1 << 40)
        getattr(message, NEXT_LIST).extend([1, -1, 1 << 30])
        getattr(message, NEXT_PART).seconds = 1


def newer(api: Api, change: Callable[[str, Any], None] | None = None) -> Rewrite:
    """Return what makes a message one of the next version; `change` may change it further."""

    def rewrite(name: str, payload: bytes) -> bytes:
        message = api.parse(name, payload)
        fill(message)
        if change is not None:
            change(name, message)
        return bytes(message.SerializeToString())

    return rewrite


def older(api: Api, change: Callable[[str, Any], None] | None = None) -> Rewrite:
    """Return what makes a message one that the previous version sends, or understands of it."""

    def rewrite(name: str, payload: bytes) -> bytes:
        message = api.parse(name, payload)
        message.DiscardUnknownFields()
        if change is not None:
            change(name, message)
        return bytes(message.SerializeToString())

    return rewrite


class VersionProxy:
    """A gRPC server before an agent that rewrites requests and answers; what it has seen pass is counted."""

    def __init__(self, agent_address: str, requests: Rewrite = as_it_is, answers: Rewrite = as_it_is) -> None:
        self._agent_address = agent_address
        self._requests, self._answers = requests, answers
        self._names = next_version().methods()
        self.unserved: set[str] = set()
        """Names of calls that this version does not have."""
        self.seen: dict[str, int] = {}
        self.address = ""

    @contextmanager
    def running(self) -> Iterator[VersionProxy]:
        """Serve in a thread of its own while the block runs."""
        ready: Future[Callable[[], object]] = Future()

        def run() -> None:
            try:
                asyncio.run(self._serve(ready))
            except BaseException as error:
                if ready.done():
                    raise
                ready.set_exception(error)

        thread = threading.Thread(target=run, name="version proxy")
        thread.start()
        stop = ready.result()
        try:
            yield self
        finally:
            stop()
            thread.join()

    async def _serve(self, ready: Future[Callable[[], object]]) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        async with grpc.aio.insecure_channel(self._agent_address) as channel:
            for service in ("NodeResources", "SnapshotCache"):
                prefix = f"/{PACKAGE}.{service}/"
                handlers = {
                    path.removeprefix(prefix): self._handler(channel, path)
                    for path in self._names
                    if path.startswith(prefix)
                }
                handler = grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers)
                server.add_generic_rpc_handlers((handler,))
            self.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            ready.set_result(lambda: loop.call_soon_threadsafe(stop.set))
            await stop.wait()
            await server.stop(grace=None)

    def _handler(self, channel: grpc.aio.Channel, path: str) -> Any:  # noqa: ANN401 - a handler of either kind
        name = path.rpartition("/")[2]
        request_name, answer_name = self._names[path]

        async def one(request: bytes, context: Any) -> bytes:  # noqa: ANN401 - grpc's
            await self._admit(name, context)
            call: Any = channel.unary_unary(path)
            try:
                answer = await call(self._requests(request_name, request), timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
            return self._answers(answer_name, answer)

        async def many(request: bytes, context: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - grpc's
            await self._admit(name, context)
            call: Any = channel.unary_stream(path)(self._requests(request_name, request))  # type: ignore[arg-type]  # bytes
            try:
                async for answer in call:
                    yield self._answers(answer_name, answer)
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
            finally:
                call.cancel()

        if name in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(many)
        return grpc.unary_unary_rpc_method_handler(one)

    async def _admit(self, name: str, context: Any) -> None:  # noqa: ANN401 - grpc's
        if name in self.unserved:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"no {name} in this version")
        self.seen[name] = self.seen.get(name, 0) + 1


async def _pass_on(error: grpc.aio.AioRpcError, context: Any) -> None:  # noqa: ANN401 - grpc's
    trailing = tuple((key, value) for key, value in error.trailing_metadata() or () if key.endswith("-bin"))
    await context.abort(error.code(), error.details() or "", trailing)


def _committed() -> FileDescriptorSet:
    return descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET.read_bytes())


def _messages(files: FileDescriptorSet) -> Iterator[DescriptorProto]:
    for file in files.file:
        if file.package == PACKAGE:
            # Nested ones are entries of maps.
            yield from file.message_type


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
