"""The snapshot cache on the metrics page.

Why this exists: operators alarm on a cache that grows, on purges that stay deferred and on a store that is not there,
without asking each agent's API.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.snapshots.cache import SnapshotCache
from agent.snapshots.model import SnapshotState
from agent.snapshots.upkeep import Upkeep

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class CacheMetrics:
    """A collector over the cache; answered from memory, but for the ledger's size."""

    def __init__(self, cache: SnapshotCache, upkeep: Upkeep) -> None:
        self._cache = cache
        self._upkeep = upkeep

    def collect(self) -> Iterable["Metric"]:
        """Return the families."""
        yield from self._states()
        yield from self._counters()
        yield from self._health()

    def _states(self) -> Iterable["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        counts = GaugeMetricFamily("cocoon_node_snapshots", "Snapshots by state.", labels=["state"])
        sizes = GaugeMetricFamily(
            "cocoon_node_snapshots_allocated_bytes", "Disk space of snapshots by state.", labels=["state"]
        )
        for state, total in self._cache.core.inventory.totals().items():
            counts.add_metric([state.name], total.count)
            sizes.add_metric([state.name], total.allocated_bytes)
        return counts, sizes, self._ages()

    def _ages(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        core = self._cache.core
        oldest = GaugeMetricFamily(
            "cocoon_node_snapshots_oldest_use_age_seconds",
            "Seconds since the last use of the snapshot unused longest, by state.",
            labels=["state"],
        )
        now = core.clock.wall()
        for state in (SnapshotState.RETAINED, SnapshotState.UNCLAIMED):
            uses = [record.last_use_at for record in core.inventory.in_states(state)]
            if uses:
                oldest.add_metric([state.name], max(0.0, now - min(uses)))
        return oldest

    def _counters(self) -> Iterable["Metric"]:
        from prometheus_client.core import CounterMetricFamily

        counters = self._cache.core.counters
        collected = CounterMetricFamily("cocoon_node_snapshots_collected", "Collected snapshots.", labels=["reason"])
        collected_bytes = CounterMetricFamily(
            "cocoon_node_snapshots_collected_bytes", "Disk space of collected snapshots.", labels=["reason"]
        )
        for reason, count in counters.collected.items():
            collected.add_metric([reason.name], count)
            collected_bytes.add_metric([reason.name], counters.collected_bytes[reason])
        return (
            CounterMetricFamily("cocoon_node_snapshots_retained", "Snapshots retained by calls.", counters.retained),
            CounterMetricFamily("cocoon_node_snapshots_purged", "Snapshots purged.", counters.purged),
            CounterMetricFamily(
                "cocoon_node_snapshots_purged_bytes", "Disk space of purged snapshots.", counters.purged_bytes
            ),
            CounterMetricFamily("cocoon_node_purges_deferred", "Purge results that were deferred.", counters.deferred),
            collected,
            collected_bytes,
        )

    def _health(self) -> Iterable["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        core, last = self._cache.core, self._cache.last_collection
        yield GaugeMetricFamily(
            "cocoon_node_snapshot_store_available", "1 when the store can be used.", float(core.store_fault is None)
        )
        yield GaugeMetricFamily(
            "cocoon_node_ledger_available", "1 when the ledger can be used.", float(core.journal.fault is None)
        )
        yield GaugeMetricFamily(
            "cocoon_node_ledger_bytes", "Disk space of the ledger's files.", core.journal.ledger.size_bytes()
        )
        yield GaugeMetricFamily(
            "cocoon_node_clock_in_doubt", "1 while nothing goes for age.", float(core.watch.in_doubt)
        )
        yield GaugeMetricFamily(
            "cocoon_node_snapshot_trash_bytes", "Removed, not yet given back.", core.store.trash_bytes()
        )
        yield GaugeMetricFamily(
            "cocoon_node_foreign_entries", "Entries of the store that are no snapshots.", core.foreign_entries.count
        )
        yield GaugeMetricFamily(
            "cocoon_node_disk_pressure", "1 when collection cannot help.", float(bool(self._upkeep.disk_pressure))
        )
        if core.applied is not None:
            age = core.clock.boot() - core.applied_boot
            yield GaugeMetricFamily("cocoon_node_owner_sync_age_seconds", "Seconds since the last owner sync.", age)
        if last is not None:
            took = max(0.0, last.ended_at - last.started_at)
            yield GaugeMetricFamily("cocoon_node_collection_seconds", "Seconds the last collection took.", took)
