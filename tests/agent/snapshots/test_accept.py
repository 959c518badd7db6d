"""An operator's word about node, cluster and disk changes what it says, and removes nothing."""

import time
from dataclasses import replace

import pytest

from agent.config import Settings
from agent.config_sources import load
from agent.snapshots.accept import accept_clock, accept_cluster, accept_node, accept_store
from agent.snapshots.authority import Caller
from agent.snapshots.cache_settings import CacheSettings
from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.stores.identity import MARKER_FILE
from common.snapshot_words import PurgeOutcome
from tests.agent.snapshots.caching import CLUSTER, HOUR, CacheHost, pod

KEPT = pod("ns", "kept", set_name="s", set_uid="set-1", keep_on_delete=True)
LEFT = pod("ns", "left", set_name="s", set_uid="set-1")
AWAY = pod("ns", "away", set_name="s", set_uid="set-1", keep_on_delete=True)
RUNNING = pod("ns", "running", set_name="s", set_uid="set-1")
ALL = (KEPT, LEFT, AWAY, RUNNING)


def settings_of(host: CacheHost, *, standalone: bool = False) -> Settings:
    environ = {
        "VK_NODE_NAME": host.settings.node_name,
        "COCOON_ROOT_DIR": str(host.base),
        "COCOON_NODE_SNAPSHOT_DIR": str(host.root),
        "COCOON_NODE_STATE_DIR": str(host.state_dir),
        "COCOON_NODE_STANDALONE": "true" if standalone else "false",
    }
    found = load({}, environ)
    assert found.settings is not None, found.problems
    return found.settings


@pytest.mark.parametrize(
    ("cluster", "set_uid"), [("cluster-2", ""), ("", ""), (CLUSTER, "set-1")], ids=["another", "the next", "the same"]
)
async def test_sets_of_another_cluster_are_not_taken_for_gone(host: CacheHost, cluster: str, set_uid: str) -> None:
    """F34: a cluster that never had these sets would call them gone and have their snapshots purged."""
    for owner in ALL:
        host.write(owner.vm_name)
    await host.sync(*ALL)
    await host.sync(RUNNING)
    (host.root / AWAY.vm_name).rename(host.base / "away")
    await host.cache.look()
    await host.cache.close()
    accept_cluster(settings_of(host), cluster)
    host.controller = Caller(0, cluster or "cluster-2")
    await host.restart()
    (host.base / "away").rename(host.root / AWAY.vm_name)
    reply = await host.sync(revision=1)
    states = {record.name: record.state.name for record in reply.unclaimed}
    assert states == {
        KEPT.vm_name: "RETAINED",
        LEFT.vm_name: "UNCLAIMED",
        AWAY.vm_name: "RETAINED",
        RUNNING.vm_name: "UNCLAIMED",
    }
    owners = [record.facts.owner for record in reply.unclaimed]
    owners += [kept.owner for record in reply.unclaimed for kept in record.facts.retentions]
    assert {owner.set_uid for owner in owners if owner is not None} == {set_uid}


@pytest.mark.parametrize("standalone", [False, True])
async def test_accepting_a_disk_does_not_end_the_caution_after_a_rebuilt_ledger(
    host: CacheHost, standalone: bool
) -> None:
    """F5: the promises are lost, so only owners can tell what is free; a host without a controller has no others."""
    host.write(KEPT.vm_name)
    await host.sync(KEPT)
    await host.sync()
    await host.cache.close()
    (host.state_dir / "ledger.sqlite").write_bytes(b"not a database" * 1000)
    (host.root / MARKER_FILE).unlink()
    accept_store(settings_of(host, standalone=standalone))
    await host.restart(CacheSettings("node-1", standalone=standalone))
    assert await host.state(KEPT.vm_name) == ("UNCLAIMED" if standalone else "IN_USE")
    expected = PurgeOutcome.PURGED if standalone else PurgeOutcome.SKIPPED_IN_USE
    assert await host.purge_by_person(KEPT.vm_name, force=True) == {KEPT.vm_name: expected}


async def test_a_running_agent_keeps_its_marker(host: CacheHost) -> None:
    host.write(KEPT.vm_name)
    await host.sync()
    marker = host.root / MARKER_FILE
    marker.write_text("damaged")
    with pytest.raises(LedgerUnavailableError):
        accept_store(settings_of(host))
    assert marker.read_text() == "damaged"


async def test_a_node_name_that_was_accepted_changes_nothing_else(host: CacheHost) -> None:
    """F34."""
    host.write(KEPT.vm_name)
    await host.sync(KEPT)
    await host.sync()
    await host.cache.close()
    accept_node(replace(settings_of(host), node_name="node-2"))
    await host.restart(CacheSettings("node-2"))
    await host.sync()
    assert await host.purge(KEPT) == {KEPT.vm_name: PurgeOutcome.SKIPPED_RETAINED}


async def test_a_clock_that_was_accepted_is_believed_at_the_next_start(host: CacheHost) -> None:
    host.clock.wall_now = time.time()
    await host.sync()
    host.clock.step(-2 * HOUR)
    await host.restart()
    assert host.cache.core.moment().clock_in_doubt
    await host.cache.close()
    host.clock.wall_now = time.time()
    accept_clock(settings_of(host))
    await host.restart()
    assert not host.cache.core.moment().clock_in_doubt
