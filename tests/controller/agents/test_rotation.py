"""The controller's TLS files replaced while it calls agents: open connections go on, new ones use the new files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import trustme
from prometheus_client import REGISTRY

from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import StaticList
from controller.agents.endpoints import AgentEndpoint
from controller.agents.fleet import AgentFleet
from devenv.cocoon_programs import AgentProcess
from tests.support import pki
from tests.support.recording_observer import RecordingObserver
from tests.support.waiting import wait_for_async

READ = "/cocoonstack.node.v1.NodeResources/GetNodeResources"


class Load:
    """Calls every agent that has a connection, over that connection, again and again."""

    def __init__(self, fleet: AgentFleet) -> None:
        self._fleet = fleet
        self.calls = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Call until cancelled."""
        while True:
            for connection in list(self._fleet.connections):
                if connection.channel is not None:
                    await self._call(connection.channel)
            await asyncio.sleep(0)

    async def _call(self, channel: grpc.aio.Channel) -> None:
        make: Any = channel.unary_unary(READ)
        try:
            await make(b"", timeout=20)
        except grpc.aio.AioRpcError as error:
            self.failures.append(f"{error.code().name}: {error.details()}")
        self.calls += 1


async def test_files_of_both_sides_are_replaced_under_load(
    agent_process: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    """F22: at each step one more agent is dialled; none is lost and no call fails."""
    old, new = trustme.CA(key_type=trustme.KeyType.ECDSA), trustme.CA(key_type=trustme.KeyType.ECDSA)
    ours = pki.TlsDirectory(tmp_path / "controller-tls")
    ours.trust(old)
    ours.use(pki.issue(old, pki.CONTROLLER))
    agents: list[AgentEndpoint] = []
    files: dict[str, pki.TlsDirectory] = {}

    async def start_agent(authority: trustme.CA, *trusted: trustme.CA) -> None:
        name = f"node-{len(agents)}"
        files[name] = tls = pki.TlsDirectory(tmp_path / f"{name}-tls")
        tls.trust(*trusted)
        tls.use(pki.issue(authority, name))
        agent = await asyncio.to_thread(agent_process, tls.agent_settings(), name)
        agents.append(AgentEndpoint(name, agent.address))

    credentials, seen = ClientCredentials(ours.files), RecordingObserver()
    fleet = AgentFleet([StaticList([])], seen, credentials)
    load = Load(fleet)
    tasks = [asyncio.create_task(fleet.run()), asyncio.create_task(load.run())]

    async def dial_one_more(step: str) -> None:
        fleet.set_endpoints("list", agents)
        await wait_for_async(lambda: fleet.connected_count() == len(agents), 60, what=step)
        calls = load.calls
        await wait_for_async(lambda: load.calls >= calls + 20, 60, what=step)
        assert (load.failures, seen.losses()) == ([], []), step

    try:
        await start_agent(old, old)
        await dial_one_more("before")
        ours.trust(old, new)
        files["node-0"].trust(old, new)
        await start_agent(new, old, new)
        await dial_one_more("an agent has a certificate of the new authority")
        half = pki.issue(new, pki.CONTROLLER)
        ours.key.write_bytes(half.key)
        await start_agent(new, old, new)
        await dial_one_more("half a rotation of our files")
        assert credentials.problem
        assert REGISTRY.get_sample_value("cocoon_node_tls_files_broken") == 1
        ours.certificate.write_bytes(half.certificate)
        await start_agent(new, new)
        await dial_one_more("an agent trusts the new authority only")
        assert REGISTRY.get_sample_value("cocoon_node_tls_files_broken") == 0
        ours.trust(new)
        files["node-0"].use(pki.issue(new, "node-0"))
        await start_agent(new, new)
        await dial_one_more("after")
        ends = REGISTRY.get_sample_value("cocoon_node_tls_expiry_timestamp_seconds", {"part": "certificate"})
        assert ends == ours.files.read().certificate_ends_at
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
