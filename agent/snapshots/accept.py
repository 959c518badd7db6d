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
from agent.snapshots.ledger_rows import LedgerChange, LedgerContents, LedgerState
from agent.snapshots.model import SnapshotFacts


def accept_node(settings: Settings) -> str:
    """Take the configured node name as the ledger's; return what was done. Raises LedgerUnavailableError."""
    before = _change(settings, lambda state: replace(state, node_name=settings.node_name))
    return f"the ledger belonged to node {before.node_name or '(none)'} and belongs to node {settings.node_name} now"


def accept_cluster(settings: Settings, cluster_id: str = "") -> str:
    """Take another cluster, or with no id the next one that calls; return what was done.

    Epochs and syncs are counted anew. Raises LedgerUnavailableError.
    """
    with closing(make_ledger(settings)) as ledger:
        contents = ledger.open()
        before = contents.state.authority.cluster_id
        state = replace(contents.state, authority=Authority(cluster_id=cluster_id))
        ledger.commit(
            LedgerChange(state=state) if cluster_id and cluster_id == before else _without_sets(contents, state)
        )
    now = cluster_id or "the next controller that calls"
    return f"the host belonged to cluster {before or '(none)'} and belongs to {now} now"


def accept_store(settings: Settings) -> str:
    """Take the disk that is mounted now as the right one; return what was done.

    After a ledger that was rebuilt everything stays in use until owners are synced, unless no controller will ever
    come. Raises LedgerUnavailableError and StoreUnavailableError.
    """
    # The ledger first: a running agent holds it, and then the marker must stay as it is.
    with closing(make_ledger(settings)) as ledger, closing(make_store(settings)) as store:
        state = ledger.open().state
        store_id = store.accept()
        in_use = state.everything_in_use and not settings.standalone
        ledger.commit(LedgerChange(state=replace(state, store_id=store_id, everything_in_use=in_use)))
        return f"the snapshot store {store.location} has id {store_id} and is this host's now"


def accept_clock(settings: Settings) -> str:
    """Believe the host's clock again; return what was done. Raises LedgerUnavailableError."""
    now = time.time()
    # When the boot began is worked out anew: by the clock that is believed now.
    _change(settings, lambda state: replace(state, clock_in_doubt=False, last_write_at=now, boot_id="", booted_at=None))
    return "the host's clock is believed; ages count from now where the time was in doubt"


def _change(settings: Settings, change: Callable[[LedgerState], LedgerState]) -> LedgerState:
    with closing(make_ledger(settings)) as ledger:
        before = ledger.open().state
        ledger.commit(LedgerChange(state=change(before)))
        return before


def _without_sets(contents: LedgerContents, state: LedgerState) -> LedgerChange:
    """Return the change that forgets which CocoonSets the owners belong to.

    Their UIDs are another cluster's: the next controller would find none of them and take every set for gone.
    """
    gone = sorted((row for row in contents.rows if row.gone is not None), key=lambda row: row.gone or 0)
    return LedgerChange(
        state=state,
        owners=[replace(owner, set_uid="") for owner in contents.owners],
        facts={(row.name, row.snapshot_id): _facts_without_set(row.facts) for row in contents.rows},
        gone=[(row.name, row.snapshot_id) for row in gone],
    )


def _facts_without_set(facts: SnapshotFacts) -> SnapshotFacts:
    return replace(
        facts,
        owner=None if facts.owner is None else replace(facts.owner, set_uid=""),
        retentions=tuple(replace(kept, owner=replace(kept.owner, set_uid="")) for kept in facts.retentions),
    )
