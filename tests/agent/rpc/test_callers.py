"""Every call of the running agent, tried by every kind of caller: who gets what is one table.

The calls come from what the agent itself serves, by its descriptors, so that a call without a row fails here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.protobuf import descriptor_pool
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships without types
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # ships without types
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # ships without types

from agent.rpc.errors import DETAILS_KEY
from cocoonstack.node.v1 import node_resources_pb2, snapshot_cache_pb2
from devenv.cocoon_programs import AgentProcess
from tests.support import pki

NODE = "host-1"
_REFLECTION = "ServerReflectionInfo"
_SECONDS = 20


class Power(enum.Enum):
    """What a caller needs for a call."""

    REACH = "a connection"
    READ = "the role viewer"
    CHANGE = "the role controller"


ROWS = {
    "/cocoonstack.node.v1.NodeResources/GetNodeResources": Power.READ,
    "/cocoonstack.node.v1.NodeResources/WatchNodeResources": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/ListSnapshots": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/GetSnapshot": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/WatchSnapshots": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/GetCacheUsage": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/VerifySnapshot": Power.READ,
    "/cocoonstack.node.v1.SnapshotCache/SyncOwners": Power.CHANGE,
    "/cocoonstack.node.v1.SnapshotCache/RetainSnapshots": Power.CHANGE,
    "/cocoonstack.node.v1.SnapshotCache/ReleaseRetention": Power.CHANGE,
    "/cocoonstack.node.v1.SnapshotCache/PurgeSnapshots": Power.CHANGE,
    "/cocoonstack.node.v1.SnapshotCache/CollectGarbage": Power.CHANGE,
    "/grpc.health.v1.Health/Check": Power.REACH,
    "/grpc.health.v1.Health/List": Power.REACH,
    "/grpc.health.v1.Health/Watch": Power.REACH,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Power.REACH,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Power.REACH,
}
"""Each call and what it needs."""

# Declared by the service and served by nobody: it must stay unserved for everybody.
UNSERVED = {"/grpc.health.v1.Health/List"}


@dataclass(frozen=True, slots=True)
class Caller:
    """One kind of caller: what it may, and how it comes; `None` in place of a certificate is none."""

    powers: frozenset[Power]
    certificate: pki.Pair | None = None
    expects: str = NODE
    tls: bool = True
    unix: bool = False


NOTHING = frozenset[Power]()
ALL = frozenset(Power)
NO_ROLE = frozenset({Power.REACH})

CALLERS = (
    "nobody",
    "plain text",
    "viewer",
    "controller",
    "controller among other names",
    "stranger",
    "role in the common name only",
    "role in other letters",
    "role as a wildcard",
    "role with something behind it",
    "the node itself",
    "another authority",
    "expired",
    "not yet valid",
    "server certificate",
    "expects another node",
    "unix socket",
)


def _callers(authority: trustme.CA) -> dict[str, Caller]:
    return {
        "nobody": Caller(NOTHING),
        "plain text": Caller(NOTHING, tls=False),
        "viewer": Caller(frozenset({Power.REACH, Power.READ}), pki.issue(authority, pki.VIEWER)),
        "controller": Caller(ALL, pki.issue(authority, pki.CONTROLLER)),
        "controller among other names": Caller(ALL, pki.issue(authority, "other.example", pki.CONTROLLER)),
        "stranger": Caller(NO_ROLE, pki.issue(authority, "somebody.example")),
        "role in the common name only": Caller(NO_ROLE, pki.issue_named_by_subject(authority, pki.CONTROLLER)),
        "role in other letters": Caller(NO_ROLE, pki.issue_as_written(authority, pki.CONTROLLER.upper())),
        "role as a wildcard": Caller(NO_ROLE, pki.issue(authority, "*.example", f"*.{pki.CONTROLLER}")),
        "role with something behind it": Caller(
            NO_ROLE, pki.issue_as_written(authority, f"{pki.CONTROLLER}\0.example")
        ),
        "the node itself": Caller(NO_ROLE, pki.issue(authority, NODE)),
        "another authority": Caller(NOTHING, pki.issue(trustme.CA(), pki.CONTROLLER)),
        "expired": Caller(NOTHING, pki.issue(authority, pki.CONTROLLER, begins_in_days=-9, ends_in_days=-1)),
        "not yet valid": Caller(NOTHING, pki.issue(authority, pki.CONTROLLER, begins_in_days=1)),
        "server certificate": Caller(NOTHING, pki.issue_for_servers(authority, pki.CONTROLLER)),
        "expects another node": Caller(NOTHING, pki.issue(authority, pki.CONTROLLER), expects="host-2"),
        "unix socket": Caller(ALL, tls=False, unix=True),
    }


class Place:
    """A running agent with TLS and a Unix socket, and the callers it has."""

    def __init__(self, agent: AgentProcess, socket_path: Path, authority: trustme.CA) -> None:
        self.agent = agent
        self._socket_path = socket_path
        self._authority = authority
        self.callers = _callers(authority)

    def channel(self, name: str) -> grpc.aio.Channel:
        """Open a channel as this caller would."""
        caller = self.callers[name]
        options: list[tuple[str, str | int]] = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 100),
        ]
        if caller.unix:
            return grpc.aio.insecure_channel(f"unix:{self._socket_path}", options=options)
        if not caller.tls:
            return grpc.aio.insecure_channel(self.agent.address, options=options)
        pair = caller.certificate
        credentials = grpc.ssl_channel_credentials(
            self._authority.cert_pem.bytes(), pair.key if pair else None, pair.certificate if pair else None
        )
        options.append(("grpc.ssl_target_name_override", caller.expects))
        return grpc.aio.secure_channel(self.agent.address, credentials, options=options)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, short_directory: Path) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("callers")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    tls = pki.TlsDirectory(directory / "tls")
    tls.trust(authority)
    tls.use(pki.issue(authority, NODE))
    agent = AgentProcess(directory / "agent", NODE, tls.agent_settings())
    socket_path = short_directory / f"callers-{agent.address.rpartition(':')[2]}" / "agent.sock"
    agent.settings["COCOON_NODE_LISTEN"] = f"{agent.address},unix:{socket_path}"
    agent.start()
    yield Place(agent, socket_path, authority)
    agent.release()


def _request(method: str) -> bytes:
    """Return a request that is refused for what it says, if at all, after it was let in."""
    if method.endswith(_REFLECTION):
        return bytes(reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString())
    return b""


async def _first_answer(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """Make the call and return how it ends, or OK once the first message is there; with the ErrorInfo's reason."""
    request: Any = _request(method)
    call: Any
    if method.endswith(_REFLECTION):
        call = channel.stream_stream(method)(iter([request]), timeout=_SECONDS)
    else:
        call = channel.unary_stream(method)(request, timeout=_SECONDS)
    try:
        message = await call.read()
        if message is not grpc.aio.EOF:
            return grpc.StatusCode.OK, ""
        code, trailing = await call.code(), await call.trailing_metadata()
    except grpc.aio.AioRpcError as error:
        code, trailing = error.code(), error.trailing_metadata()
    finally:
        call.cancel()
    return code, _reason(dict(trailing or ()).get(DETAILS_KEY, b""))


def _reason(details: bytes) -> str:
    info = error_details_pb2.ErrorInfo()
    for detail in status_pb2.Status.FromString(details).details:
        if detail.Unpack(info):
            return str(info.reason)
    return ""


def _declared_methods() -> set[str]:
    """Every method of every service that the agent is known to serve, by the descriptors."""
    files = [
        node_resources_pb2.DESCRIPTOR,
        snapshot_cache_pb2.DESCRIPTOR,
        health_pb2.DESCRIPTOR,
        reflection_pb2.DESCRIPTOR,
    ]
    found = {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.services_by_name.values()
        for method in service.methods
    }
    return found | {method.replace(".v1alpha.", ".v1.") for method in found}


def test_every_declared_call_has_a_row() -> None:
    assert set(ROWS) == _declared_methods()


async def test_every_served_call_has_a_row(place: Place) -> None:
    """What the agent says it serves, asked of itself, and not what this test believes."""
    request = reflection_pb2.ServerReflectionRequest(list_services="*").SerializeToString()
    async with place.channel("unix socket") as channel:
        call: Any = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(iter([request]), timeout=_SECONDS)
        services = [each.name for each in (await call.read()).list_services_response.service]
        call.cancel()
    pool = descriptor_pool.Default()
    served = {
        f"/{name}/{method.name}"
        for name in services
        for method in pool.FindServiceByName(name.replace("reflection.v1.", "reflection.v1alpha.")).methods
    }
    assert served == set(ROWS)


@pytest.mark.parametrize("caller", CALLERS)
async def test_who_may_call_what(place: Place, caller: str) -> None:
    """A caller without a connection gets nowhere, one without the role is told NOT_AUTHORIZED, all others get in."""
    powers = place.callers[caller].powers
    wrong = {}
    async with place.channel(caller) as channel:
        for method, needed in ROWS.items():
            code, reason = await _first_answer(channel, method)
            if Power.REACH not in powers:
                fits = code is grpc.StatusCode.UNAVAILABLE and reason == ""
            elif method in UNSERVED:
                fits = code is grpc.StatusCode.UNIMPLEMENTED
            elif needed not in powers:
                fits = (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "NOT_AUTHORIZED")
            else:
                fits = code in _LET_IN
            if not fits:
                wrong[method] = (code, reason)
    assert wrong == {}


_LET_IN = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}


async def test_every_caller_has_a_row(place: Place) -> None:
    assert tuple(place.callers) == CALLERS
