"""The pages of the HTTP listener: alive, ready or why not, metrics."""

from collections.abc import Callable, Mapping, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, disable_created_metrics, generate_latest

from common.http_listener import Page, Route, health_routes

_CONTENT_TYPE = str(CONTENT_TYPE_LATEST)
# They double the page and say nothing that a scraper does not see by itself.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library does not annotate it
HTTP_CONNECTIONS_DROPPED = Counter(
    "cocoon_node_http_connections_dropped_total", "HTTP connections given up because there were too many."
)


def routes(unready_reasons: Callable[[], Sequence[str]]) -> Mapping[str, Route]:
    """Return the listener's routes; `unready_reasons` gives one sentence for each thing still missing."""

    async def metrics() -> Page:
        return Page(200, generate_latest(REGISTRY), _CONTENT_TYPE)

    return health_routes(unready_reasons, metrics)
