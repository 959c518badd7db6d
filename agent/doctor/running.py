"""The agent that runs with these settings, if one does: what it says of itself on its HTTP listener, and its process.

Why this exists: a running agent holds its ledger and its store, so only it can be asked; and it is the one that has to
have rights, room and a version, not the person who looks.
"""

import contextlib
import fcntl
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.config import Settings
from agent.snapshots.ledger import LEDGER_FILE
from common.addresses import join_address, reachable_host

_SECONDS = 5.0
_MAX_BYTES = 4 * 1024 * 1024
# `struct flock` of 64-bit Linux: type, whence, start, length, process.
_FLOCK = "hhqqi"

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """`metrics` by name and labels, empty when the HTTP listener was not there to be asked; `pid` 0 when unknown."""

    pid: int = 0
    is_asked: bool = False
    unready: tuple[str, ...] = ()
    metrics: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return the value of a metric without labels, None when it is not there."""
        return self.metrics.get(name, {}).get(frozenset())

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric by one of its labels."""
        return {dict(labels).get(label, ""): value for labels, value in self.metrics.get(name, {}).items()}


def find_running(settings: Settings) -> RunningAgent | None:
    """Return the agent that runs with these settings, None when there is none."""
    pid = _ledger_holder(os.path.join(settings.state_dir, LEDGER_FILE))
    page = _page(settings.http_listen, "/metrics")
    metrics = _parsed(page[1]) if page is not None and page[0] == 200 else {}
    if "cocoon_node_agent_info" not in metrics:
        # Somebody else's listener: the settings' address is in use by another program.
        return RunningAgent(pid) if pid else None
    ready = _page(settings.http_listen, "/readyz")
    reasons = tuple(ready[1].splitlines()) if ready is not None and ready[0] != 200 else ()
    return RunningAgent(pid, is_asked=True, unready=reasons, metrics=metrics)


def _ledger_holder(path: str) -> int:
    """Return the process that holds the ledger's lock, 0 when there is none; asks the kernel and takes no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
        return pid if kind != fcntl.F_UNLCK else 0
    finally:
        os.close(descriptor)


def _page(listener: tuple[str, int] | None, path: str) -> tuple[int, str] | None:
    if listener is None:
        return None
    host, port = listener
    address = join_address(reachable_host(host), port)
    # Not through the proxy that the environment may name for other purposes.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}{path}", timeout=_SECONDS) as answer:
            return answer.status, answer.read(_MAX_BYTES).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _parsed(text: str) -> dict[str, dict[Labels, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[Labels, float]] = {}
    with contextlib.suppress(ValueError):  # not a page of metrics
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found
