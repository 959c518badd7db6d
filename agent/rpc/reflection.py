"""Descriptors as reflection hands them out: with JSON names, and with reflection v1 among them.

Why this exists: descriptors compiled into Python carry no JSON names, so grpcurl would print `node_name` where every
other client of this API, and `probe -o json`, say `nodeName`. The library ships reflection v1alpha only; the two
versions differ in the package's name.
"""

from collections.abc import Iterable

from google.protobuf import descriptor, descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]  # ships without types

SERVICE_V1ALPHA: str = reflection.SERVICE_NAME
SERVICE_V1 = "grpc.reflection.v1.ServerReflection"
_FILE_V1 = "grpc/reflection/v1/reflection.proto"


def reflection_pool(service_names: Iterable[str]) -> descriptor_pool.DescriptorPool:
    """Return a pool with the files of these services and of both reflection versions, and all they import."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    default = descriptor_pool.Default()
    for name in service_names:
        if name != SERVICE_V1:
            _add(pool, default.FindServiceByName(name).file, added)
    pool.Add(_with_json_names(_reflection_v1()))
    return pool


def _add(pool: descriptor_pool.DescriptorPool, file: descriptor.FileDescriptor, added: set[str]) -> None:
    """Add a file after those it imports."""
    if file.name in added:
        return
    added.add(file.name)
    for imported in file.dependencies:
        _add(pool, imported, added)
    message = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(message)
    pool.Add(_with_json_names(message))


def _with_json_names(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        waiting.extend(message.nested_type)
        for field in message.field:
            field.json_name = _json_name(field.name)
    return file


def _json_name(name: str) -> str:
    """Return the lowerCamelCase name that protobuf's JSON form gives a field."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _reflection_v1() -> descriptor_pb2.FileDescriptorProto:
    """Return the description of reflection v1alpha under the names of v1, which has the same messages."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    old, new = f".{file.package}.", ".grpc.reflection.v1."
    file.name, file.package = _FILE_V1, "grpc.reflection.v1"
    for message in file.message_type:
        for field in message.field:
            if field.type_name:  # a scalar has none, and an empty one would count as given
                field.type_name = field.type_name.replace(old, new)
    for method in file.service[0].method:
        method.input_type = method.input_type.replace(old, new)
        method.output_type = method.output_type.replace(old, new)
    return file
