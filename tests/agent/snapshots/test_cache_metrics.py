"""What the metrics page says of the cache, after a life in which everything happened once."""

from prometheus_client import CollectorRegistry, generate_latest

from agent.snapshots.cache_metrics import CacheMetrics
from agent.snapshots.collection import Policy
from agent.snapshots.stores.identity import MARKER_FILE
from agent.snapshots.upkeep import Upkeep
from tests.agent.snapshots.caching import HOUR, CacheHost, pod


def page(host: CacheHost) -> dict[str, float]:
    """Return the samples of the page by name and labels, as they are read by a scraper."""
    registry = CollectorRegistry()
    registry.register(CacheMetrics(host.cache, Upkeep(host.cache)))
    lines = generate_latest(registry).decode().splitlines()
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


async def test_everything_that_happens_is_counted(host: CacheHost) -> None:
    for name in ("vk-ns-kept", "vk-ns-collected", "vk-ns-purged", "vk-ns-late", "ubuntu"):
        host.write(name)
    (host.root / "somebody-elses").touch()
    assert "cocoon_node_owner_sync_age_seconds" not in page(host)
    await host.purge(pod("ns", "late"), revision=1)
    await host.sync()
    await host.retain(pod("ns", "collected"), backup_verified=True)
    await host.retain(pod("ns", "kept"))
    await host.purge(pod("ns", "purged"))
    await host.collect(Policy(keep_at_most=1))
    host.clock.pass_time(HOUR / 60)
    await host.cache.look(everything=True)
    seen = page(host)
    assert seen['cocoon_node_snapshots{state="RETAINED"}'] == 1
    assert seen['cocoon_node_snapshots{state="UNCLAIMED"}'] == 1
    assert seen['cocoon_node_snapshots{state="SHARED"}'] == 1
    assert seen['cocoon_node_snapshots{state="IN_USE"}'] == 0
    assert seen['cocoon_node_snapshots_allocated_bytes{state="RETAINED"}'] > 0
    assert seen['cocoon_node_snapshots_oldest_use_age_seconds{state="RETAINED"}'] >= 0
    assert seen["cocoon_node_snapshots_retained_total"] == 2
    assert seen["cocoon_node_snapshots_purged_total"] == 1
    assert seen["cocoon_node_snapshots_purged_bytes_total"] > 0
    assert seen["cocoon_node_purges_deferred_total"] == 1
    assert seen['cocoon_node_snapshots_collected_total{reason="KEEP_AT_MOST"}'] == 1
    assert seen['cocoon_node_snapshots_collected_bytes_total{reason="KEEP_AT_MOST"}'] > 0
    assert seen["cocoon_node_collection_seconds"] >= 0
    assert seen["cocoon_node_owner_sync_age_seconds"] == 60
    assert seen["cocoon_node_foreign_entries"] == 1
    assert 0 < seen["cocoon_node_ledger_bytes"] <= 8 << 20
    assert seen["cocoon_node_snapshot_store_available"] == seen["cocoon_node_ledger_available"] == 1
    assert seen["cocoon_node_clock_in_doubt"] == seen["cocoon_node_disk_pressure"] == 0


async def test_what_is_wrong_is_shown_while_the_rest_goes_on(host: CacheHost) -> None:
    (host.root / MARKER_FILE).unlink()
    await host.purge(pod("ns", "web"), revision=1)
    host.clock.step(HOUR)
    host.cache.core.moment()
    seen = page(host)
    assert seen["cocoon_node_snapshot_store_available"] == 0
    assert seen["cocoon_node_clock_in_doubt"] == 1
    assert seen["cocoon_node_ledger_available"] == 1
