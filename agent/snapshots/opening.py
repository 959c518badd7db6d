"""How the cache begins: the ledger is read, the store is proved to be the right disk, the two are brought together.

Why this exists: most ways to lose snapshots begin here, with a disk that is not mounted, a ledger that is damaged, a
host that is not the one it was. Each of these is told apart and none of them removes anything.
"""

import logging
from dataclasses import replace

from agent.snapshots.cache_core import CacheCore
from agent.snapshots.cache_refresh import Refresher
from agent.snapshots.errors import WrongNodeError, quoted
from agent.snapshots.ledger_rows import LedgerChange, LedgerContents
from agent.snapshots.ownership import OwnerSet
from agent.snapshots.stores.contract import LedgerIdentity, StoreOrigin

_log = logging.getLogger(__name__)
# Never a store's id: a ledger that replaces a damaged one belongs to a store it does not know, so that a store without
# a marker is not taken for a first start.
_UNKNOWN_STORE = ""


async def open_ledger(core: CacheCore, refresher: Refresher) -> None:
    """Read the ledger into the core. Raises LedgerUnavailableError."""
    contents: LedgerContents = await core.journal.in_thread(core.journal.ledger.open)
    if core.journal.ledger.set_aside_as:
        _log.error(
            "the ledger was damaged and has been set aside as %s; everything counts as in use until owners are synced",
            core.journal.ledger.set_aside_as,
        )
    state = contents.state
    core.journal.load(contents)
    core.owners = OwnerSet(contents.owners)
    core.watch_clock_since(state)
    if state.node_name and state.node_name != core.settings.node_name:
        core.refusal = WrongNodeError(
            f"the ledger {core.journal.ledger.path} belongs to node {quoted(state.node_name)}, this is node"
            f" {quoted(core.settings.node_name)}; nothing is changed until an operator runs"
            " `cocoon-node-agent accept node`"
        )
        _log.error("%s", core.refusal)
    refresher.load(contents.rows)


async def open_store(core: CacheCore, refresher: Refresher) -> None:
    """Open the store, take a full look and let removals go on. Called under the lock, again after a fault.

    Raises StoreUnavailableError; then nothing was changed.
    """
    store_id = core.state.store_id
    if store_id is None and core.state.everything_in_use:
        store_id = _UNKNOWN_STORE
    knows = refresher.knows_snapshots or len(core.inventory) > 0
    opening = await core.in_store(core.store.open, LedgerIdentity(store_id=store_id, knows_snapshots=knows))
    core.is_identified = True
    rebuilt = opening.origin is StoreOrigin.REBUILT
    if rebuilt:
        _log.warning("the ledger knows nothing of store %s; everything in it counts as in use", core.store.location)
    state = replace(
        core.state,
        store_id=opening.store_id,
        node_name=core.state.node_name or core.settings.node_name,
        everything_in_use=core.state.everything_in_use or rebuilt,
    )
    if state != core.state:
        await core.commit(LedgerChange(state=state))
    await refresher.look_at_everything()
    await core.in_store(core.store.resume)
    await core.flush()
