"""A first look that takes long does not keep the host from being told, and never lets it be told wrongly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.config_sources import load
from agent.resources.report import Condition
from agent.snapshots.assembly import SnapshotParts
from agent.snapshots.errors import StoreFault, StoreUnavailableError
from tests.agent.snapshots.stores.harness import envelope, write_snapshot
from tests.support.waiting import wait_for_async

VM = "vk-ns-web"


def made(base: Path, **settings: str) -> SnapshotParts:
    """Return the parts of an agent whose patience with a first look is over at once."""
    (base / "root" / "snapshots").mkdir(parents=True, exist_ok=True)
    environ = {
        "VK_NODE_NAME": "node-1",
        "COCOON_ROOT_DIR": str(base / "root"),
        "COCOON_NODE_STATE_DIR": str(base / "state"),
        **settings,
    }
    found = load({}, environ)
    assert found.settings is not None, found.problems
    return SnapshotParts(found.settings, first_look_seconds=0.0)


class Gate:
    """Holds a call of the store up until it is opened."""

    def __init__(self, parts: SnapshotParts, method: str) -> None:
        self._open = threading.Event()
        store = parts.cache.core.store
        call: Callable[..., object] = getattr(store, method)

        def held(*arguments: object) -> object:
            self._open.wait(60)
            return call(*arguments)

        setattr(store, method, held)

    def open(self) -> None:
        self._open.set()


def readiness(parts: SnapshotParts) -> Condition:
    return next(one for one in parts.view.conditions() if one.type == "CocoonSnapshotCacheReady")


async def test_the_host_is_told_during_a_long_first_look_and_snapshots_after_it(tmp_path: Path) -> None:
    parts = made(tmp_path)
    write_snapshot(tmp_path / "root" / "snapshots", VM, metadata=envelope(VM, "id-1"))
    gate = Gate(parts, "scan_all")
    try:
        await parts.start()
        # It is the right disk, so what it has free may be told; what could be given back is not known.
        await wait_for_async(lambda: parts.view.storage_problem() is None, what="the right disk")
        assert parts.view.reclaimable_bytes() == 0
        assert (readiness(parts).status, readiness(parts).reason) == (False, "Starting")
        with pytest.raises(StoreUnavailableError) as refused:
            await parts.cache.page()
        assert refused.value.fault is StoreFault.NOT_OPEN
        gate.open()
        await parts.opened()
        assert (readiness(parts).status, readiness(parts).reason) == (True, "Ready")
        assert [record.name for record in (await parts.cache.page()).snapshots] == [VM]
    finally:
        gate.open()
        await parts.stop()


async def test_the_storage_is_not_believed_before_it_is_known_to_be_the_right_disk(tmp_path: Path) -> None:
    """F5: an unmounted disk has free space as well."""
    parts = made(tmp_path)
    gate = Gate(parts, "open")
    try:
        await parts.start()
        assert parts.view.storage_problem() is not None
        gate.open()
        await parts.opened()
        assert parts.view.storage_problem() is None
    finally:
        gate.open()
        await parts.stop()


async def test_a_fault_that_waiting_does_not_cure_is_raised_however_late_it_shows(tmp_path: Path) -> None:
    (tmp_path / "root" / "snapshot" / "localfile").mkdir(parents=True)
    parts = made(tmp_path)
    gate = Gate(parts, "open")
    try:
        await parts.start()
        gate.open()
        with pytest.raises(StoreUnavailableError) as refused:
            await parts.opened()
        assert refused.value.fault is StoreFault.WRONG_KIND
    finally:
        gate.open()
        await parts.stop()


async def test_an_agent_that_ends_during_its_first_look_leaves_nothing_running(tmp_path: Path) -> None:
    parts = made(tmp_path)
    gate = Gate(parts, "scan_all")
    await parts.start()
    gate.open()
    await parts.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("snapshot-")]
