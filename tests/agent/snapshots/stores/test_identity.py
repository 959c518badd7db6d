"""The rule that tells the right disk from another one."""

import pytest

from agent.snapshots.errors import StoreFault
from agent.snapshots.stores.contract import LedgerIdentity, StoreOrigin
from agent.snapshots.stores.identity import decide_origin, is_own_file

A, B = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("ledger_id", "knows_snapshots", "marker_id", "verdict"),
    [
        (None, False, None, StoreOrigin.FIRST_START),
        (None, True, None, StoreFault.MARKER_MISSING),
        (A, False, None, StoreFault.MARKER_MISSING),
        (A, True, None, StoreFault.MARKER_MISSING),
        (A, True, A, StoreOrigin.MATCHED),
        (A, False, A, StoreOrigin.MATCHED),
        (None, False, A, StoreOrigin.REBUILT),
        (None, True, A, StoreFault.MARKER_DIFFERENT),
        (B, False, A, StoreOrigin.REBUILT),
        (B, True, A, StoreFault.MARKER_DIFFERENT),
    ],
)
def test_whose_store_it_is(
    ledger_id: str | None, knows_snapshots: bool, marker_id: str | None, verdict: StoreOrigin | StoreFault
) -> None:
    """F5: a ledger that was written for a store never takes one without a marker, the look of an unmounted disk."""
    assert decide_origin(LedgerIdentity(ledger_id, knows_snapshots), marker_id) is verdict


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        (".cocoon-node-store", True),
        (".cocoon-node-store." + A, True),
        (".cocoon-node-store.bak", False),
        (".cocoon-node-store2", False),
        ("vk-a-b", False),
    ],
)
def test_which_files_are_the_markers(name: str, is_own: bool) -> None:
    assert is_own_file(name) is is_own
