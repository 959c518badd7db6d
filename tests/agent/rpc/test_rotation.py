"""Certificates and authorities replaced under load: no call fails, on open connections and on new ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from devenv.cocoon_programs import AgentProcess
from tests.support import pki
from tests.support.metrics import metric
from tests.support.waiting import wait_for_async

READ = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
CHANGE = "/cocoonstack.node.v1.SnapshotCache/SyncOwners"
WATCH = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"
NODE = "host-1"
_NEW_CONNECTIONS_A_STEP = 10


@dataclass
class Client:
    """What a client trusts and shows now, and how its calls ended."""

    trusted: bytes
    pair: pki.Pair
    address: str
    new_connections: int = 0
    calls: int = 0
    failures: list[str] = field(default_factory=list)

    def channel(self) -> grpc.aio.Channel:
        """Open a connection of its own, with what counts now."""
        credentials = grpc.ssl_channel_credentials(self.trusted, self.pair.key, self.pair.certificate)
        options = [("grpc.ssl_target_name_override", NODE), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(self.address, credentials, options=options)

    async def call(self, channel: grpc.aio.Channel, method: str) -> None:
        """Make one call and count how it ended."""
        make: Any = channel.unary_unary(method)
        try:
            await make(b"", timeout=20)
        except grpc.aio.AioRpcError as error:
            # An owner sync without a revision is refused for what it says: it was let in.
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                self.failures.append(f"{method}: {error.code().name}: {error.details()}")
        self.calls += 1

    async def keep_calling(self) -> None:
        """Call over one open connection."""
        async with self.channel() as channel:
            while True:
                await self.call(channel, READ)
                await self.call(channel, CHANGE)

    async def keep_connecting(self) -> None:
        """Call over a new connection each time."""
        while True:
            async with self.channel() as channel:
                await self.call(channel, READ)
            self.new_connections += 1

    async def keep_watching(self) -> None:
        """Hold one watch open."""
        async with self.channel() as channel:
            watch: Any = channel.unary_stream(WATCH)(b"")  # type: ignore[arg-type]  # bytes as they are
            try:
                while await watch.read() is not grpc.aio.EOF:
                    continue
                self.failures.append("the watch ended")
            except grpc.aio.AioRpcError as error:
                self.failures.append(f"the watch broke: {error.code().name}")


@contextlib.asynccontextmanager
async def load_of(client: Client) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(part)
        for part in (client.keep_calling(), client.keep_connecting(), client.keep_connecting(), client.keep_watching())
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def tls(tmp_path: Path) -> pki.TlsDirectory:
    return pki.TlsDirectory(tmp_path / "tls")


async def test_everything_is_replaced_under_load(
    agent_process: Callable[..., AgentProcess], tls: pki.TlsDirectory
) -> None:
    """F22: the order of an operator: trust both authorities, change the certificates, trust the new one only."""
    old, new = trustme.CA(key_type=trustme.KeyType.ECDSA), trustme.CA(key_type=trustme.KeyType.ECDSA)
    old_pem, new_pem = old.cert_pem.bytes(), new.cert_pem.bytes()
    tls.trust(old)
    tls.use(pki.issue(old, NODE))
    agent = await asyncio.to_thread(agent_process, tls.agent_settings(), NODE)
    client = Client(old_pem, pki.issue(old, pki.CONTROLLER), agent.address)

    async def some_connections(step: str) -> None:
        until = client.new_connections + _NEW_CONNECTIONS_A_STEP
        await wait_for_async(lambda: client.new_connections >= until or client.failures, 60, what=step)
        assert client.failures == [], step

    async with load_of(client):
        await some_connections("before")
        tls.trust(old, new)
        client.trusted = old_pem + new_pem
        await some_connections("both are trusted")
        half = pki.issue(new, NODE, ends_in_days=90)
        tls.key.write_bytes(half.key)
        await some_connections("half a rotation of the agent's files")
        assert await asyncio.to_thread(metric, agent.http_address, "cocoon_node_tls_files_broken") == 1
        assert await asyncio.to_thread(metric, agent.http_address, "cocoon_node_failed_tls_reloads_total") > 0
        tls.certificate.write_bytes(half.certificate)
        await some_connections("the agent's certificate is new")
        assert await asyncio.to_thread(metric, agent.http_address, "cocoon_node_tls_files_broken") == 0
        client.pair = pki.issue(new, pki.CONTROLLER)
        await some_connections("the client's certificate is new")
        tls.trust(new)
        client.trusted = new_pem
        await some_connections("only the new authority is trusted")
        whole = tls.authorities.read_bytes()
        tls.authorities.write_bytes(whole[: len(whole) // 2])
        await some_connections("half of the authorities' file is written")
        tls.authorities.write_bytes(whole)
        await some_connections("after")
    assert client.calls > 8 * _NEW_CONNECTIONS_A_STEP

    ends = await asyncio.to_thread(
        metric, agent.http_address, "cocoon_node_tls_expiry_timestamp_seconds", part="certificate"
    )
    assert ends == tls.files.read().certificate_ends_at
    outdated = Client(new_pem, pki.issue(old, pki.CONTROLLER), agent.address)
    async with outdated.channel() as channel:
        await outdated.call(channel, READ)
    assert "UNAVAILABLE" in outdated.failures[0]


async def test_a_certificate_that_controllers_will_refuse_is_told(
    agent_process: Callable[..., AgentProcess], tls: pki.TlsDirectory
) -> None:
    """Each of these is a file in good order, and yet nobody would get through to this node."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    tls.trust(authority)
    tls.use(pki.issue(authority, "host-2"))
    agent = await asyncio.to_thread(agent_process, tls.agent_settings(), NODE)
    log = agent.directory / "agent.log"
    assert "(host-2) do not contain the node's name host-1" in log.read_text()
    tls.use(pki.issue(authority, NODE, begins_in_days=-3, ends_in_days=-1))
    client = Client(authority.cert_pem.bytes(), pki.issue(authority, pki.VIEWER), agent.address)
    async with client.channel() as channel:
        await client.call(channel, READ)
    assert "UNAVAILABLE" in client.failures[0]
    assert "it ran out at" in log.read_text()
