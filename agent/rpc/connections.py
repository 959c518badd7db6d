"""How many connections there may be, and how many there are.

Why this exists: the library closes connections above a limit by itself and tells nobody, neither that it did nor how
many are open. So they are counted where the kernel keeps them, when somebody asks for the metrics.
"""

import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# What the agent itself opens: ledger, store, engine, /proc, its HTTP listener and its callers.
_OWN_FILES = 256
_FEWEST = 4


def connections_allowed(wanted: int, address_count: int, open_files: int) -> int:
    """Return how many connections each of the addresses may take, so that files stay left for everything else."""
    return max(_FEWEST, min(wanted, (open_files - _OWN_FILES) // max(1, address_count)))


class ConnectionMetrics:
    """A collector of open connections by listening address; `listen` once the addresses are bound.

    `restarts` tells how often the server began anew, which ended all of them.
    """

    def __init__(self, limit: int, restarts: Callable[[], int]) -> None:
        self._limit = limit
        self._restarts = restarts
        self._names: dict[object, str] = {}

    def listen(self, addresses: Iterable[str]) -> None:
        """Count connections to these addresses, as the server says that it has bound them."""
        self._names = {_key_of(address): address for address in addresses}

    def collect(self) -> Iterable["Metric"]:
        """Return the families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self.open_connections()
        connections = GaugeMetricFamily(
            "cocoon_node_connections", "Open gRPC connections by the address they came to.", labels=["listener"]
        )
        for name in self._names.values():
            connections.add_metric([name], found[name])
        yield connections
        yield GaugeMetricFamily(
            "cocoon_node_connections_limit", "gRPC connections that each address takes.", self._limit
        )
        yield CounterMetricFamily(
            "cocoon_node_server_restarts", "Times the gRPC server began anew after a malformed call.", self._restarts()
        )

    def open_connections(self) -> Counter[str]:
        """Return the number of open connections by address."""
        found: Counter[str] = Counter()
        for descriptor in os.listdir("/proc/self/fd"):
            # Others close files meanwhile, and what has no peer is no connection.
            with contextlib.suppress(OSError):
                found[self._names.get(_key_of_connection(int(descriptor)), "")] += 1
        del found[""]
        return found


def _key_of(address: str) -> object:
    """Return what tells the connections of an address: the path, or the port, which nobody else may bind as well."""
    if address.startswith("unix:"):
        return address.removeprefix("unix:")
    return int(address.rpartition(":")[2])


def _key_of_connection(descriptor: int) -> object:
    # A copy: the library may close the original at any moment, and a number is soon another file's.
    copied = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        raise
    with connection:
        connection.getpeername()
        name = connection.getsockname()
    return name[1] if isinstance(name, tuple) else name
