"""What the cache has to write down: commits of promises, and the backlog of what was merely observed.

Why this exists: a promise is committed before it is shown, or it was not made. What was observed (a snapshot appeared
or went, its time unclaimed began) would be observed again, so it is shown at once and rides on the next commit; a
ledger that cannot be written never stops answers that only read.
"""

import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import (
    MAX_SUPERSEDED,
    LedgerChange,
    LedgerContents,
    LedgerState,
    SnapshotKey,
    prune_gone,
)
from agent.snapshots.model import NO_FACTS, SnapshotFacts
from agent.snapshots.work_threads import WorkThreads

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")
_ABSENT = object()

Stamp = Callable[[LedgerState], LedgerState]
"""Returns a state with what the clocks show at the time of a commit."""


class Journal:
    """The ledger as the event loop sees it.

    Attributes:
        ledger: Called in a thread of its own only.
        state: As last committed.
        gone: Facts of snapshots that left the store, by name and id, oldest first.
        superseded: UIDs of pods whose place another has taken, oldest first.
        fault: Why the ledger could not be used at the last attempt; None when it could.
    """

    def __init__(self, ledger: Ledger) -> None:
        """Take the ledger; it is opened by whoever reads it first."""
        self.ledger = ledger
        self.state = LedgerState()
        self.gone: dict[SnapshotKey, SnapshotFacts] = {}
        self.superseded: dict[str, None] = {}
        self.fault: LedgerUnavailableError | None = None
        self._is_loaded = False
        self._facts: dict[SnapshotKey, SnapshotFacts | None] = {}
        self._went: dict[SnapshotKey, None] = {}
        self._replaced: dict[str, None] = {}
        self._thread = WorkThreads(1, "snapshot-ledger")

    def load(self, contents: LedgerContents) -> None:
        """Take over what is in the ledger. Before that nothing is written: it would be written over what is there.

        A ledger of a newer release, above all, is refused, and must be found untouched by that release.
        """
        self.state = contents.state
        self.superseded = dict.fromkeys(contents.superseded_uids)
        self._is_loaded = True

    async def in_thread(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a blocking call of the ledger in its thread; remember whether the ledger is available."""
        try:
            result = await self._thread.run(lambda: call(*args, **kwargs))
        except LedgerUnavailableError as error:
            if self.fault is None:
                _log.error("%s", error)
            self.fault = error
            raise
        self.fault = None
        return result

    def close(self) -> None:
        """End the thread and close the ledger; blocks. May be repeated."""
        self._thread.close()
        self.ledger.close()

    def observe(self, key: SnapshotKey, facts: SnapshotFacts) -> None:
        """Have facts written with the next commit."""
        self._facts[key] = None if facts == NO_FACTS else facts
        self._went.pop(key, None)

    def observe_gone(self, key: SnapshotKey, facts: SnapshotFacts) -> None:
        """Keep the facts of a snapshot that has left the store without our doing, in case it comes back."""
        self.gone[key] = facts
        self._went[key] = None

    def forget(self, key: SnapshotKey) -> None:
        """Drop everything about a snapshot that has been removed by us."""
        self.gone.pop(key, None)
        self._went.pop(key, None)
        self._facts[key] = None

    def note_superseded(self, uids: Iterable[str]) -> None:
        """Remember pods in whose place another of their name has come."""
        for uid in uids:
            if uid not in self.superseded:
                self.superseded[uid] = None
                self._replaced[uid] = None
        while len(self.superseded) > MAX_SUPERSEDED:
            del self.superseded[next(iter(self.superseded))]

    def note_named(self, uids: Iterable[str]) -> None:
        """Forget that pods were superseded which a sync names again: it knows more than the one that left them out."""
        for uid in self.superseded.keys() & set(uids):
            del self.superseded[uid]
            self._replaced.pop(uid, None)

    async def commit(self, change: LedgerChange, stamp: Stamp, *, urgent: bool = False) -> None:
        """Commit a change together with the backlog.

        Raises LedgerUnavailableError; then nothing was changed, and the backlog waits for the next commit.
        """
        await self.commit_within(lambda commit: commit(), change, stamp, urgent=urgent)

    async def commit_within(
        self, work: Callable[[Callable[[], None]], _T], change: LedgerChange, stamp: Stamp, *, urgent: bool = False
    ) -> _T:
        """Run blocking work in the ledger's thread and return its result; it commits by calling what it is given.

        So a look at the store, a commit and a removal cost one change of threads. Work that ends without the call has
        changed nothing here; errors are those of `commit` and of the work itself.
        """
        if not self._is_loaded:
            raise LedgerUnavailableError(f"the ledger {self.ledger.path} was not read, so nothing is written over it")
        state = stamp(change.state or self.state)
        facts, went, replaced = dict(self._facts), dict(self._went), dict(self._replaced)
        whole = LedgerChange(
            # What has nothing new to tell is written only where nothing else is: a commit also proves that one can.
            state=None if state is self.state and (facts or change.facts) else state,
            facts={**facts, **change.facts} if change.facts else facts,
            gone=tuple(went),
            owners=change.owners,
            superseded_uids=(*replaced, *change.superseded_uids),
        )
        is_committed = False

        def commit() -> None:
            nonlocal is_committed
            self.ledger.commit(whole, urgent=urgent)
            is_committed = True

        try:
            return await self.in_thread(work, commit)
        finally:
            if is_committed:
                self.state = state
                self._drop_written(change, facts, went, replaced)

    def _drop_written(
        self,
        change: LedgerChange,
        facts: dict[SnapshotKey, SnapshotFacts | None],
        went: dict[SnapshotKey, None],
        replaced: dict[str, None],
    ) -> None:
        # What was observed during the commit stays for the next one.
        # A new dictionary, because one that was emptied keeps the room it had: after a first look, a lot.
        self._facts = {
            key: one
            for key, one in self._facts.items()
            if key not in change.facts and facts.get(key, _ABSENT) is not one
        }
        _drop(self._went, went)
        _drop(self._replaced, replaced)
        prune_gone(self.gone)

    async def flush(self, stamp: Stamp) -> None:
        """Commit the backlog, if there is any; a failure is remembered in `fault`, not raised."""
        if self._is_loaded and (self.fault is not None or self._facts or self._went or self._replaced):
            try:
                await self.commit(LedgerChange(), stamp)
            except LedgerUnavailableError:
                return


def _drop(waiting: dict[_T, None], written: Iterable[_T]) -> None:
    for key in written:
        waiting.pop(key, None)
