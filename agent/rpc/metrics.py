"""What the agent counts about its calls, and the metrics page.

Why this exists: a call is counted with a few plain additions, because counting must not show in the time a call takes.
The exposition library is imported when somebody asks for the page, because it would cost a third of the agent's start.
"""

import asyncio
import bisect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry

BOUNDS_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0)


class MethodCalls:
    """The finished calls of one method: count by status code, and a histogram of their seconds."""

    __slots__ = ("buckets", "codes", "total_seconds")

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.buckets = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    def ended(self, code: str) -> None:
        """Count one stream: how long it was watched says nothing about the agent."""
        self.codes[code] = self.codes.get(code, 0) + 1

    def finished(self, code: str, seconds: float) -> None:
        """Count one call that has one answer."""
        self.codes[code] = self.codes.get(code, 0) + 1
        self.buckets[bisect.bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds


class CallMetrics:
    """All methods' calls; `collect` makes them a page's families."""

    def __init__(self) -> None:
        self.methods: dict[str, MethodCalls] = {}
        self.active: Callable[[], dict[str, int]] = dict
        self.http_connections_dropped = 0

    def http_connection_dropped(self) -> None:
        """Count a connection that the HTTP listener gave up for another one."""
        self.http_connections_dropped += 1

    def of(self, method: str) -> MethodCalls:
        """Return the counters of a method."""
        return self.methods.setdefault(method, MethodCalls())

    def collect(self) -> Iterable["Metric"]:
        """Return the families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        calls = CounterMetricFamily(
            "cocoon_node_calls", "Finished calls by method and code.", labels=["method", "code"]
        )
        seconds = HistogramMetricFamily("cocoon_node_call_seconds", "Seconds a call took.", labels=["method"])
        for method, counted in self.methods.items():
            for code, count in counted.codes.items():
                calls.add_metric([method, code], count)
            if any(counted.buckets):
                seconds.add_metric([method], _cumulative(counted.buckets), counted.total_seconds)
        active = GaugeMetricFamily("cocoon_node_active_calls", "Calls that run now.", labels=["kind"])
        for kind, count in self.active().items():
            active.add_metric([kind], count)
        dropped = CounterMetricFamily(
            "cocoon_node_http_connections_dropped",
            "HTTP connections given up because there were too many.",
            self.http_connections_dropped,
        )
        return calls, seconds, active, dropped


class MetricsPage:
    """The text of /metrics, from every collector that was added."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._collectors: list[Collector] = []
        self._registry: CollectorRegistry | None = None

    def add(self, collector: "Collector") -> None:
        """Add a collector: anything with `collect()`, called on the event loop; before the first page."""
        self._collectors.append(collector)

    async def text(self) -> bytes:
        """Return the page."""
        if self._registry is None:
            self._registry = await asyncio.to_thread(self._make_registry)
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def _make_registry(self) -> "CollectorRegistry":
        from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector

        registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        for collector in self._collectors:
            registry.register(collector)
        return registry


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), buckets, strict=True):
        total += count
        found.append((bound, total))
    return found
