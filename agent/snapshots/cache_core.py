"""What all use cases of the snapshot cache share: the store, the journal, the inventory, the clock and the one lock.

Why this exists: every change is made the same way. Under the lock the facts are decided, then committed, then shown in
memory; a change that could not be committed has not happened.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from agent.snapshots.cache_journal import Journal
from agent.snapshots.cache_settings import CacheSettings
from agent.snapshots.cache_turns import Turns
from agent.snapshots.clock import Clock, ClockWatch, first_watch
from agent.snapshots.collection import CollectionReason
from agent.snapshots.errors import SnapshotError, StoreUnavailableError
from agent.snapshots.feed import ChangeFeed
from agent.snapshots.inventory import Inventory, KnownSnapshot
from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import LedgerChange, LedgerState, SnapshotKey
from agent.snapshots.model import NO_FACTS, Moment, Situation, SnapshotFacts, SyncPoint, state_of
from agent.snapshots.ownership import OwnerSet
from agent.snapshots.purging import SyncKnowledge
from agent.snapshots.retention import restamp, settle
from agent.snapshots.stores.contract import ChangeMark, ForeignEntries, Store, StoredSnapshot
from agent.snapshots.work_threads import WorkThreads

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

CrashPoint = Callable[[str], None]
"""Called with the name of each point at which a crash must lose nothing; does nothing outside tests."""


# Who restores a copy verifies it first; its claim follows with the next owner sync, which comes at every change.
RESTORE_SECONDS = 120.0
_SAME_WRITE_SECONDS = 5.0


def no_crash(_name: str) -> None:
    """Go on."""


@dataclass(slots=True)
class CacheCounters:
    """What happened since this start, for metrics: counts, and bytes by the same keys."""

    retained: int = 0
    purged: int = 0
    purged_bytes: int = 0
    deferred: int = 0
    collected: dict[CollectionReason, int] = field(default_factory=dict)
    collected_bytes: dict[CollectionReason, int] = field(default_factory=dict)


class CacheCore:
    """The shared state. Everything but the threads is used on the event loop only."""

    def __init__(
        self, settings: CacheSettings, store: Store, ledger: Ledger, clock: Clock, crash_point: CrashPoint = no_crash
    ) -> None:
        """Put the parts together; nothing is opened yet."""
        self.settings = settings
        self.store = store
        self.journal = Journal(ledger)
        self.clock = clock
        self.crash_point = crash_point
        self.feed = ChangeFeed()
        self.inventory = Inventory(self.feed.publish)
        self.turns = Turns()
        self.counters = CacheCounters()
        self.owners = OwnerSet()
        self.engine_in_use: frozenset[str] = frozenset()
        self.foreign_entries = ForeignEntries()
        self.mark: ChangeMark | None = None
        self.applied: SyncPoint | None = None
        self.applied_boot = 0.0
        self.watch = ClockWatch(clock.wall(), clock.boot())
        self._boot_id = clock.boot_id()
        self.store_fault: StoreUnavailableError | None = None
        self.is_identified = False
        self.refusal: SnapshotError | None = None
        self.closed = False
        self._verified_boot: dict[SnapshotKey, float] = {}
        self._threads = WorkThreads(4, "snapshot-store")

    @property
    def state(self) -> LedgerState:
        """What the ledger knows besides snapshots, as last committed."""
        return self.journal.state

    def require_acceptance(self) -> None:
        """Raise what an operator has to accept before anything may be changed."""
        if self.refusal is not None:
            raise self.refusal

    # Threads ----------------------------------------------------------------------------------------

    async def in_store(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a blocking call of the store in a thread; remember when the store is not available."""
        try:
            return await self._threads.run(lambda: call(*args, **kwargs))
        except StoreUnavailableError as error:
            self.note_store_fault(error)
            raise

    async def close_parts(self) -> None:
        """Close store and ledger and end the threads. May be repeated."""
        await asyncio.to_thread(self.store.close)
        await asyncio.to_thread(self.journal.close)
        await asyncio.to_thread(self._threads.close)

    # Time and knowledge ------------------------------------------------------------------------------------------

    def moment(self) -> Moment:
        """Return the time for a decision, after a look at both clocks."""
        wall, boot = self.clock.wall(), self.clock.boot()
        looked = self.watch.look(wall, boot)
        if looked.in_doubt and not self.watch.in_doubt:
            _log.warning("the wall clock was stepped; nothing is removed for age until the time is confirmed")
        self.watch = looked
        return looked.moment(wall)

    def watch_clock_since(self, state: LedgerState) -> None:
        """Begin to watch the clock from where the ledger says it was."""
        is_this_boot = bool(self._boot_id) and state.boot_id == self._boot_id
        self.watch = first_watch(
            self.clock.wall(),
            self.clock.boot(),
            state.last_write_at,
            was_in_doubt=state.clock_in_doubt,
            booted_at=state.booted_at if is_this_boot else None,
        )
        if self.watch.in_doubt and not state.clock_in_doubt:
            _log.warning("the wall clock was set while the agent was stopped, or the agent was stopped for long")

    def confirm_clock(self) -> None:
        """Believe the wall clock, and start times anew that were taken while it was in doubt."""
        self.watch = ClockWatch(self.clock.wall(), self.clock.boot())
        moment = self.moment()
        for record in list(self.inventory.all()):
            if record.facts.stamped_in_doubt:
                self.observe(record, self.settled(record, restamp(record.facts, moment), moment))

    def knowledge(self) -> SyncKnowledge:
        """Return which owner sync was applied since this start, and whether it is recent enough."""
        if self.applied is None:
            return SyncKnowledge()
        age = self.clock.boot() - self.applied_boot
        return SyncKnowledge(self.applied, age <= self.settings.sync_max_age_seconds)

    def note_restore(self, record: KnownSnapshot) -> None:
        """Remember that somebody is about to restore a snapshot."""
        boot = self.clock.boot()
        recent = {key: at for key, at in self._verified_boot.items() if boot - at <= RESTORE_SECONDS}
        self._verified_boot = {**recent, record.key: boot}

    def is_restoring(self, record: KnownSnapshot) -> bool:
        """Whether somebody was about to restore a snapshot moments ago."""
        at = self._verified_boot.get(record.key)
        return at is not None and self.clock.boot() - at <= RESTORE_SECONDS

    def note_store_fault(self, error: StoreUnavailableError | None) -> None:
        """Remember that the store is not available, or is again."""
        if error is not None and self.store_fault is None:
            _log.error("%s", error)
        elif error is None and self.store_fault is not None:
            _log.info("the snapshot store %s is available again", self.store.location)
        if (error is None) != (self.store_fault is None):
            self.feed.wake_all()
        self.store_fault = error

    # Facts and states --------------------------------------------------------------------------------------------

    def situation(self, record: KnownSnapshot) -> Situation:
        """Return what is the case around a snapshot."""
        return record.situation(
            claimed=bool(self.owners.claimants(record.entry.target_name)),
            engine_in_use=bool(record.snapshot_id) and record.snapshot_id in self.engine_in_use,
            everything_in_use=self.state.everything_in_use,
        )

    def settled(self, record: KnownSnapshot, facts: SnapshotFacts, moment: Moment) -> SnapshotFacts:
        """Return facts as they are to be recorded for a snapshot in its present situation."""
        return settle(facts, self.situation(record), moment).with_shared_owner(record.name)

    def show(self, record: KnownSnapshot, facts: SnapshotFacts) -> None:
        """Show a snapshot with its recorded facts, in the state that follows from them."""
        record.facts = facts
        self.inventory.put(record, state_of(self.situation(record), retained=bool(facts.retentions)))

    def observe(self, record: KnownSnapshot, facts: SnapshotFacts) -> None:
        """Show what was merely observed, and have it committed with the next change."""
        if facts != record.facts:
            self.journal.observe(record.key, facts)
        self.show(record, facts)

    def observe_gone(self, record: KnownSnapshot) -> None:
        """Note that a snapshot has left the store without our doing; its promises wait for it to come back."""
        self.inventory.remove(record.name)
        if record.facts != NO_FACTS:
            self.journal.observe_gone(record.key, record.facts)

    def forget(self, record: KnownSnapshot) -> None:
        """Note that a snapshot has been removed by us: nothing about it is kept."""
        self.inventory.remove(record.name)
        self.journal.forget(record.key)

    def restate(self, names: Iterable[str]) -> None:
        """Work out facts and states of some snapshots again, because something around them changed."""
        moment = self.moment()
        for name in names:
            record = self.inventory.get(name)
            if record is not None:
                self.observe(record, self.settled(record, record.facts, moment))

    def expire(self) -> None:
        """Let promises end whose time is over."""
        if not self.inventory.expiring:
            return
        moment = self.moment()
        self.restate(
            [
                name
                for name in self.inventory.expiring
                if (record := self.inventory.get(name)) is not None
                and any(kept.expired(moment) for kept in record.facts.retentions)
            ]
        )

    async def commit(self, change: LedgerChange, *, urgent: bool = False) -> None:
        """Commit a change; see `Journal.commit`."""
        await self.journal.commit(change, self._stamped, urgent=urgent)

    async def commit_within(
        self, work: Callable[[Callable[[], None]], _T], change: LedgerChange, *, urgent: bool = False
    ) -> _T:
        """Run work with store and ledger in one thread; see `Journal.commit_within`. Remembers a store's fault."""
        try:
            return await self.journal.commit_within(work, change, self._stamped, urgent=urgent)
        except StoreUnavailableError as error:
            self.note_store_fault(error)
            raise

    async def flush(self) -> None:
        """Commit what was observed; see `Journal.flush`."""
        await self.journal.flush(self._stamped)

    async def commit_facts(self, facts: Mapping[str, SnapshotFacts], change: LedgerChange) -> list[KnownSnapshot]:
        """Commit facts of known snapshots by name and show them; return those snapshots, sorted by name."""
        await self.commit(replace(change, facts=self.documents(facts)))
        return self.show_committed(facts)

    def known_entries(self, names: Iterable[str]) -> dict[str, StoredSnapshot | None]:
        """Return what `Store.rescan` of these names returns as long as nothing in the store has changed."""
        return {name: record.entry if (record := self.inventory.get(name)) else None for name in names}

    def documents(self, facts: Mapping[str, SnapshotFacts]) -> dict[SnapshotKey, SnapshotFacts | None]:
        """Return facts by name as the ledger files them; nothing to record is None."""
        return {
            record.key: None if one == NO_FACTS else one
            for name, one in facts.items()
            if (record := self.inventory.get(name)) is not None
        }

    def show_committed(self, facts: Mapping[str, SnapshotFacts]) -> list[KnownSnapshot]:
        """Show facts that have just been committed."""
        records = [record for name in sorted(facts) if (record := self.inventory.get(name)) is not None]
        for record in records:
            self.show(record, facts[record.name])
        return records

    def _stamped(self, state: LedgerState) -> LedgerState:
        """Return a state with the time of its commit; while that is in doubt, with the one last believed.

        The state itself, when it was committed a moment ago: the time of a write is needed to the minute only.
        """
        moment = self.moment()
        if moment.clock_in_doubt:
            return replace(state, clock_in_doubt=True)
        if (
            state is self.state
            and not state.clock_in_doubt
            and state.last_write_at is not None
            and 0 <= moment.now - state.last_write_at < _SAME_WRITE_SECONDS
            and (state.boot_id, state.booted_at) == (self._boot_id, self.watch.booted_at)
        ):
            return state
        return replace(
            state,
            clock_in_doubt=False,
            last_write_at=moment.now,
            boot_id=self._boot_id,
            booted_at=self.watch.booted_at,
        )
