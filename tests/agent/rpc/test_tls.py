"""Mutual TLS: who gets in, what each role may do, and certificates that change while the server runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from agent.config_values import ListenAddress
from agent.rpc.authorization import Authorization
from agent.rpc.guard import CallGuard
from agent.rpc.metrics import CallMetrics
from agent.rpc.server import RpcServer
from agent.rpc.tls import ReloadingCertificates
from common.tls_files import TlsFiles, TlsFilesError
from tests.support.waiting import wait_for_async

READ = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
CHANGE = "/cocoonstack.node.v1.SnapshotCache/PurgeSnapshots"
NAMES = {"controller": "cocoon-node-controller", "viewer": "cocoon-node-viewer", "stranger": "somebody"}


class Files:
    """The server's files, written by a test."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key, self.ca = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))

    def write(self, authority: trustme.CA, clients: trustme.CA | None = None, name: str = "host-1") -> None:
        leaf = authority.issue_cert(name, "127.0.0.1")
        self.key.write_bytes(leaf.private_key_pem.bytes())
        self.cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        self.ca.write_bytes((clients or authority).cert_pem.bytes())

    def tls(self) -> ReloadingCertificates:
        return ReloadingCertificates(TlsFiles(str(self.ca), str(self.cert), str(self.key)), "host-1")


async def answer(_request: bytes, _context: object) -> bytes:
    return b"done"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def address(files: Files, authority: trustme.CA) -> AsyncIterator[tuple[str, ReloadingCertificates]]:
    files.write(authority)
    tls = files.tls()
    guard = CallGuard(Authorization([NAMES["controller"]], [NAMES["viewer"]], mutual_tls=True), CallMetrics())
    server = RpcServer(guard)
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    server.add_service("cocoonstack.node.v1.NodeResources", {"GetNodeResources": handler})
    server.add_service("cocoonstack.node.v1.SnapshotCache", {"PurgeSnapshots": handler})
    (bound,) = await server.start((ListenAddress("127.0.0.1", 0),), tls.credentials())
    yield bound, tls
    await server.stop()


async def ask(
    address: str, method: str, authority: trustme.CA, client: trustme.LeafCert | None, name: str = "host-1"
) -> grpc.StatusCode:
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        client.private_key_pem.bytes() if client else None,
        client.cert_chain_pems[0].bytes() if client else None,
    )
    options = (("grpc.ssl_target_name_override", name),)
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        call: Any = channel.unary_unary(method)
        try:
            await call(b"", timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("role", "read", "change"),
    [
        ("controller", grpc.StatusCode.OK, grpc.StatusCode.OK),
        ("viewer", grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED),
        ("stranger", grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_roles(
    address: tuple[str, ReloadingCertificates],
    authority: trustme.CA,
    role: str,
    read: grpc.StatusCode,
    change: grpc.StatusCode,
) -> None:
    client = authority.issue_cert(NAMES[role])
    assert await ask(address[0], READ, authority, client) is read
    assert await ask(address[0], CHANGE, authority, client) is change


async def test_clients_without_a_certificate_of_ours_do_not_get_in(
    address: tuple[str, ReloadingCertificates], authority: trustme.CA
) -> None:
    other = trustme.CA().issue_cert(NAMES["controller"])
    assert await ask(address[0], READ, authority, None) is grpc.StatusCode.UNAVAILABLE
    assert await ask(address[0], READ, authority, other) is grpc.StatusCode.UNAVAILABLE


async def test_a_unix_socket_stays_plain_and_may_do_everything(
    files: Files, authority: trustme.CA, short_directory: Path
) -> None:
    """The directory is its lock: whoever gets to the socket is this host's own user."""
    files.write(authority)
    where = f"{short_directory}/tls-{os.getpid()}/agent.sock"
    guard = CallGuard(Authorization(["c"], ["v"], mutual_tls=True), CallMetrics())
    server = RpcServer(guard)
    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    server.add_service("cocoonstack.node.v1.SnapshotCache", {"PurgeSnapshots": handler})
    await server.start((ListenAddress(unix_path=where),), files.tls().credentials())
    try:
        async with grpc.aio.insecure_channel(f"unix:{where}") as channel:
            call: Any = channel.unary_unary(CHANGE)
            assert await call(b"", timeout=10) == b"done"
    finally:
        await server.stop()


async def test_the_server_proves_its_name(address: tuple[str, ReloadingCertificates], authority: trustme.CA) -> None:
    client = authority.issue_cert(NAMES["controller"])
    assert await ask(address[0], READ, authority, client, name="host-2") is grpc.StatusCode.UNAVAILABLE


async def test_new_files_are_used_and_broken_ones_are_not(
    address: tuple[str, ReloadingCertificates], files: Files, authority: trustme.CA
) -> None:
    """F22: rotated, half written, another authority."""
    where, tls = address
    client = authority.issue_cert(NAMES["controller"])
    files.cert.write_bytes(files.cert.read_bytes()[:100])
    assert await ask(where, READ, authority, client) is grpc.StatusCode.OK
    assert tls.failed_reloads > 0

    new = trustme.CA()
    files.write(new, name="host-1")
    new_client = new.issue_cert(NAMES["controller"])

    async def answers() -> bool:
        return await ask(where, READ, new, new_client) is grpc.StatusCode.OK

    await wait_for_async(answers)
    assert await ask(where, READ, authority, client) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("broken", ["cert", "key", "ca"])
@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\n"])
def test_files_that_cannot_be_used_are_named(
    files: Files, authority: trustme.CA, broken: str, content: bytes | None
) -> None:
    files.write(authority)
    path: Path = getattr(files, broken)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(TlsFilesError) as caught:
        files.tls().credentials()
    assert str(path) in str(caught.value)


def test_a_key_of_another_certificate_is_refused(files: Files, authority: trustme.CA) -> None:
    files.write(authority)
    files.key.write_bytes(authority.issue_cert("other").private_key_pem.bytes())
    with pytest.raises(TlsFilesError):
        files.tls().credentials()
