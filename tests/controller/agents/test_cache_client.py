"""Calls in the leader's name to a real agent: epochs, clusters, typed refusals, nothing sent without right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

import grpc.aio
import pytest

from common.snapshot_words import Owner, PurgeOutcome, PurgeReason, ReleaseReason, RetainOutcome, RetainReason
from controller.agents.cache_client import (
    AgentUnreachableError,
    CacheClient,
    StaleEpochError,
    StaleSyncError,
    WrongClusterError,
)
from controller.kube.leadership import Leadership, NotLeadingError
from devenv.cocoon_programs import AgentProcess
from devenv.vm_snapshots import write_snapshot

OWNER = Owner("uid-1", "shop", "web-0", "vk-shop-web-0", managed=True, set_name="web", set_uid="set-1")
FOREVER = 1e9


class OneChannel:
    """The connection to one agent, or none."""

    def __init__(self, channel: grpc.aio.Channel | None) -> None:
        self.open = channel

    def channel(self, node: str) -> grpc.aio.Channel | None:
        return self.open if node == "host" else None

    def nodes(self) -> Iterable[str]:
        return ("host",)

    def is_known(self, node: str) -> bool:
        return node == "host"


@pytest.fixture
def agent(agent_process: Callable[..., AgentProcess]) -> AgentProcess:
    started = agent_process()
    (started.root / "snapshots").mkdir(exist_ok=True)
    return started


@pytest.fixture
async def channels(agent: AgentProcess) -> AsyncIterator[OneChannel]:
    async with grpc.aio.insecure_channel(agent.address) as channel:
        yield OneChannel(channel)


def _leader(channels: OneChannel, epoch: int, cluster: str = "cluster-1") -> CacheClient:
    leadership = Leadership(lambda: 0.0)
    leadership.grant(epoch, FOREVER)
    return CacheClient(channels, leadership, cluster)


async def test_life_of_a_snapshot(agent: AgentProcess, channels: OneChannel) -> None:
    write_snapshot(agent.root / "snapshots", OWNER.vm_name)
    client = _leader(channels, 3)
    assert await client.sync_owners("host", [OWNER], 1) == ()
    assert await client.retain("host", OWNER, RetainReason.DISRUPTION, 3600) == (RetainOutcome.RETAINED, 1)
    (found,) = await client.sync_owners("host", [], 2)
    assert (found.name, found.owner, found.retained) == (OWNER.vm_name, OWNER, RetainReason.DISRUPTION)
    assert found.expires_at is not None
    assert await client.list_unclaimed("host") == (found,)
    (located,) = await client.list_vm("host", OWNER.vm_name)
    assert located.state == "RETAINED"
    (refused,) = await client.purge("host", OWNER, PurgeReason.TEARDOWN, 2)
    assert refused.outcome is PurgeOutcome.SKIPPED_RETAINED
    assert await client.release("host", OWNER, ReleaseReason.SET_DELETED) == 1
    assert await client.release("host", OWNER, ReleaseReason.SET_DELETED) == 0
    (purged,) = await client.purge("host", OWNER, PurgeReason.TEARDOWN, 2)
    assert purged.outcome is PurgeOutcome.PURGED
    assert not (agent.root / "snapshots" / OWNER.vm_name).exists()
    (again,) = await client.purge("host", OWNER, PurgeReason.TEARDOWN, 2)
    assert again.outcome is PurgeOutcome.NOTHING_TO_PURGE
    assert await client.retain("host", OWNER, RetainReason.SEAT_RELEASE, None) == (RetainOutcome.NOTHING_TO_RETAIN, 0)


async def test_what_was_said_of_a_backup_comes_back(agent: AgentProcess, channels: OneChannel) -> None:
    """Whoever finds a backup gone has to know that the agent was told of one."""
    write_snapshot(agent.root / "snapshots", OWNER.vm_name)
    client = _leader(channels, 3)
    await client.sync_owners("host", [], 1)
    for said in (True, False):
        await client.retain("host", OWNER, RetainReason.SEAT_RELEASE, None, backup_verified=said)
        (located,) = await client.list_vm("host", OWNER.vm_name)
        assert (located.found.backup_verified, located.found.retained) == (said, RetainReason.SEAT_RELEASE)


async def test_late_purge_of_a_stopped_leader_is_refused(agent: AgentProcess, channels: OneChannel) -> None:
    """F33: a leader that was stopped between asking for the right and sending has a lower epoch by then."""
    write_snapshot(agent.root / "snapshots", OWNER.vm_name)
    old, new = _leader(channels, 3), _leader(channels, 4)
    await old.sync_owners("host", [], 1)
    await new.sync_owners("host", [], 1)
    with pytest.raises(StaleEpochError) as refused:
        await old.purge("host", OWNER, PurgeReason.TEARDOWN, 1)
    assert refused.value.highest_epoch == 4
    assert (agent.root / "snapshots" / OWNER.vm_name).exists()
    assert await old.retain("host", OWNER, RetainReason.SEAT_RELEASE, None) == (RetainOutcome.RETAINED, 1)


async def test_refusals_are_typed(channels: OneChannel) -> None:
    client = _leader(channels, 3)
    await client.sync_owners("host", [], 5)
    with pytest.raises(StaleSyncError):
        await client.sync_owners("host", [], 4)
    with pytest.raises(WrongClusterError):
        await _leader(channels, 9, "cluster-2").sync_owners("host", [], 6)
    with pytest.raises(AgentUnreachableError, match="no connection"):
        await client.sync_owners("elsewhere", [], 6)


async def test_nothing_is_sent_without_the_right(channels: OneChannel) -> None:
    client = CacheClient(channels, Leadership(lambda: 0.0), "cluster-1")
    with pytest.raises(NotLeadingError):
        await client.purge("host", OWNER, PurgeReason.TEARDOWN, 1)
    with pytest.raises(NotLeadingError):
        await client.sync_owners("host", [OWNER], 1)
    assert await client.list_unclaimed("host") == ()


async def test_a_dead_agent_is_unreachable(agent: AgentProcess, channels: OneChannel) -> None:
    client = _leader(channels, 3)
    await client.sync_owners("host", [], 1)
    agent.stop()
    with pytest.raises(AgentUnreachableError):
        await client.sync_owners("host", [], 2)
