"""The removals by the engine: one at a time, each on record before it begins, none killed, interrupted ones finished.

Why this exists: `snapshot rm` takes as long as it takes to give the space back, and it may outlive the agent. So what
has been begun is written down first, and whoever comes later waits for it or finishes it.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from agent.snapshots.errors import SnapshotError, StoreUnavailableError
from agent.snapshots.stores.contract import nothing
from agent.snapshots.stores.engine_command import EngineRemoval, EngineSettings
from agent.snapshots.stores.engine_listing import EngineListing, Leftover, left_by
from agent.snapshots.stores.removal_record import RemovalRecord, RunningRemoval

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Listings(Protocol):
    """Asks the engine what there is and gives the answer to a function. Raises StoreUnavailableError."""

    def __call__(self, use: Callable[[EngineListing], _T], /) -> _T: ...


class EngineRemovals:
    """Removes by the engine. Methods block and may be called from any thread.

    `with_listing` and `in_use_ids` ask the engine; `unfinished` are the removals that were begun and not seen to end,
    by snapshot id.
    """

    def __init__(
        self,
        settings: EngineSettings,
        record: RemovalRecord,
        with_listing: Listings,
        in_use_ids: Callable[[], frozenset[str]],
    ) -> None:
        self._settings = settings
        self._record = record
        self._with_listing = with_listing
        self._in_use_ids = in_use_ids
        self._turn = threading.Lock()
        self._resuming: threading.Thread | None = None
        self.unfinished: dict[str, RunningRemoval] = {}

    def open(self, wait_seconds: float) -> None:
        """Wait for what an earlier process left running and read what it left unfinished.

        Raises StoreUnavailableError when it takes longer.
        """
        self._record.prepare()
        self._record.wait_for_end(wait_seconds)
        self.unfinished = {removal.snapshot_id: removal for removal in self._record.unfinished()}

    def resume(self) -> None:
        """Finish interrupted removals in the background."""
        if self.unfinished and (self._resuming is None or not self._resuming.is_alive()):
            self._resuming = threading.Thread(target=self._finish_interrupted, name="snapshot-resume", daemon=True)
            self._resuming.start()

    def wait_for_resumed(self) -> None:
        """Return when no interrupted removal is being finished."""
        resuming = self._resuming
        if resuming is not None:
            resuming.join()

    def remove(self, snapshot_id: str, fingerprint_of: Callable[[], int | None], begun: Callable[[], object]) -> bool:
        """Remove a snapshot; False when `fingerprint_of`, asked right before, says that it is not there any more.

        `begun` is called when the engine's command runs. Raises what the two raise, and StoreUnavailableError.
        """
        with self._turn:
            whole_fingerprint = fingerprint_of()
            if whole_fingerprint is None:
                return False
            self._remove(RunningRemoval(snapshot_id=snapshot_id, fingerprint=whole_fingerprint), begun)
        return True

    def _remove(self, removal: RunningRemoval, begun: Callable[[], object] = nothing) -> None:
        with self._record.locked() as descriptor:
            self._note(descriptor, removal)
            try:
                running = EngineRemoval(self._settings, removal.snapshot_id, inherited=descriptor)
            except StoreUnavailableError:
                self._forget(descriptor, removal.snapshot_id)
                raise
            begun()
            # Until it ends nothing may keep us from waiting; without its pid the inherited lock still tells of it.
            with contextlib.suppress(StoreUnavailableError):
                self._note(descriptor, msgspec.structs.replace(removal, pid=running.pid))
            answer = running.wait()
            # Whatever the status says, the list tells whether it is gone: another may have removed it meanwhile.
            left = (
                self._with_listing(lambda listing: left_by(listing, removal))
                if answer.status != 0
                else Leftover.NOTHING
            )
            if left is not Leftover.A_PART:
                self._forget(descriptor, removal.snapshot_id)
            if left is not Leftover.NOTHING:
                raise running.failure(answer)

    def _finish_interrupted(self) -> None:
        """Remove what an earlier run had begun to remove, and only that: a part of its data is gone already."""
        with self._turn:
            for removal in list(self.unfinished.values()):
                try:
                    self._finish(removal)
                except SnapshotError as error:
                    _log.warning("cannot finish the removal of snapshot %s now: %s", removal.snapshot_id, error)

    def _finish(self, removal: RunningRemoval) -> None:
        if self._with_listing(lambda listing: left_by(listing, removal)) is not Leftover.A_PART:
            with self._record.locked() as descriptor:
                self._forget(descriptor, removal.snapshot_id)
        elif removal.snapshot_id in self._in_use_ids():
            _log.warning(
                "the removal of snapshot %s was interrupted and a VM uses it; it is left alone", removal.snapshot_id
            )
        else:
            self._remove(removal)
            _log.info("finished the removal of snapshot %s that was interrupted", removal.snapshot_id)

    def _note(self, descriptor: int, removal: RunningRemoval) -> None:
        self._record.write(descriptor, [*self._others(removal.snapshot_id), removal])
        self.unfinished = self.unfinished | {removal.snapshot_id: removal}

    def _forget(self, descriptor: int, snapshot_id: str) -> None:
        others = self._others(snapshot_id)
        self._record.write(descriptor, others)
        self.unfinished = {removal.snapshot_id: removal for removal in others}

    def _others(self, snapshot_id: str) -> list[RunningRemoval]:
        return [removal for removal in self.unfinished.values() if removal.snapshot_id != snapshot_id]
