"""What only an operator can decide, on the host and with the agent stopped: that a change of identity is meant.

Why this exists: another node name, another cluster, another disk look the same as a mistake that would cost snapshots.
The agent refuses each of them; these functions are the way on. They work on the ledger, which a running agent holds.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from agent.config import Settings
from agent.snapshots.assembly import make_ledger, make_store
from agent.snapshots.authority import Authority
from agent.snapshots.ledger_rows import LedgerChange, LedgerState


def accept_node(settings: Settings) -> str:
    """Take the configured node name as the ledger's; return what was done. Raises LedgerUnavailableError."""
    before = _change(settings, lambda state: replace(state, node_name=settings.node_name))
    return f"the ledger belonged to node {before.node_name or '(none)'} and belongs to node {settings.node_name} now"


def accept_cluster(settings: Settings, cluster_id: str = "") -> str:
    """Take another cluster, or with no id the next one that calls; return what was done.

    Epochs and syncs are counted anew. Raises LedgerUnavailableError.
    """
    before = _change(settings, lambda state: replace(state, authority=Authority(cluster_id=cluster_id)))
    now = cluster_id or "the next controller that calls"
    return f"the host belonged to cluster {before.authority.cluster_id or '(none)'} and belongs to {now} now"


def accept_store(settings: Settings) -> str:
    """Take the disk that is mounted now as the right one; return what was done.

    Raises LedgerUnavailableError and StoreUnavailableError.
    """
    with closing(make_store(settings)) as store:
        store_id = store.accept()
        _change(settings, lambda state: replace(state, store_id=store_id, everything_in_use=False))
        return f"the snapshot store {store.location} has id {store_id} and is this host's now"


def accept_clock(settings: Settings) -> str:
    """Believe the host's clock again; return what was done. Raises LedgerUnavailableError."""
    now = time.time()
    _change(settings, lambda state: replace(state, clock_in_doubt=False, last_write_at=now))
    return "the host's clock is believed; ages count from now where the time was in doubt"


def _change(settings: Settings, change: Callable[[LedgerState], LedgerState]) -> LedgerState:
    with closing(make_ledger(settings)) as ledger:
        before = ledger.open().state
        ledger.commit(LedgerChange(state=change(before)))
        return before
