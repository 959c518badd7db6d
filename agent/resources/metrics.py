"""The host's resources on the metrics page.

Why this exists: operators alarm on numbers that stopped moving or moved too far, without asking each agent's API.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.resources.monitor import HostMonitor
from agent.resources.service import NodeResourcesService
from common.version import VERSION

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class ResourceMetrics:
    """A collector over the service and the monitor."""

    def __init__(self, service: NodeResourcesService, monitor: HostMonitor) -> None:
        self._service = service
        self._monitor = monitor

    def collect(self) -> Iterable["Metric"]:
        """Return the families. Amounts are in base units: millicores, bytes, counts."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        capacity = GaugeMetricFamily(
            "cocoon_node_capacity", "Published capacity in millicores, bytes or a count.", labels=["resource"]
        )
        allocatable = GaugeMetricFamily(
            "cocoon_node_allocatable", "Published allocatable in millicores, bytes or a count.", labels=["resource"]
        )
        condition = GaugeMetricFamily("cocoon_node_condition", "1 when the condition is true.", labels=["type"])
        report = self._service.report
        if report is not None:
            for amount in report.amounts:
                capacity.add_metric([amount.name], amount.capacity)
                allocatable.add_metric([amount.name], amount.allocatable)
            for each in report.conditions:
                condition.add_metric([each.type], float(each.status is True))
        build = GaugeMetricFamily("cocoon_node_agent_info", "The agent that answers.", labels=["version"])
        build.add_metric([VERSION], 1)
        return (
            capacity,
            allocatable,
            condition,
            build,
            GaugeMetricFamily("cocoon_node_report_revision", "Revision of the report.", self._service.revision),
            GaugeMetricFamily("cocoon_node_watches", "Open watches of the report.", self._service.watches),
            GaugeMetricFamily(
                "cocoon_node_probe_seconds", "Seconds of the last reading.", self._monitor.last_read_seconds
            ),
            CounterMetricFamily("cocoon_node_failed_readings", "Readings that failed.", self._monitor.failed_readings),
        )
