"""What the engine lists, joined with what lies in its data directory, and what follows from comparing two looks."""

import enum
from collections.abc import Iterable, Mapping
from typing import Any

from agent.snapshots.errors import StoreFault, StoreUnavailableError, quoted
from agent.snapshots.names import is_store_name
from agent.snapshots.stores.contract import ChangeMark, Changes, ForeignEntries, StoredSnapshot
from agent.snapshots.stores.engine_layout import EngineData, describe_record, describe_unlisted, fingerprint
from agent.snapshots.stores.envelope import Envelope, envelope_of_record
from agent.snapshots.stores.removal_record import RunningRemoval

MAX_FOREIGN_EXAMPLES = 20


class IndexMark(ChangeMark):
    """The index's signature, 0 for one that must be looked at again, and a digest of each entry's record by name."""

    __slots__ = ("digests", "signature")

    def __init__(self, signature: int, digests: dict[str, int]) -> None:
        self.signature = signature
        self.digests = digests


class EngineListing:
    """What the engine lists, by entry name, and what lies in its data directory; taken together once."""

    def __init__(self, signature: int, records: list[Mapping[str, Any]], data: EngineData) -> None:
        self.data = data
        self.envelopes: dict[str, Envelope] = {}
        self._digests: dict[str, int] = {}
        for record in records:
            envelope = envelope_of_record(record)
            # The engine's own names are unique; a snapshot without one goes by its id.
            name = envelope.name if envelope.name and envelope.name not in self.envelopes else envelope.snapshot_id
            if not envelope.snapshot_id:
                raise StoreUnavailableError(
                    "the answer of cocoon snapshot list cannot be understood: it has a snapshot without an id",
                    fault=StoreFault.ENGINE_ANSWER_UNREADABLE,
                )
            self.envelopes[name] = envelope
            self._digests[name] = hash(repr(sorted(record.items(), key=repr)))
        listed = {envelope.snapshot_id for envelope in self.envelopes.values()}
        self.unlisted = {name for name in data.directory_names - listed if is_store_name(name)}
        self.mark = IndexMark(signature, self._digests | dict.fromkeys(self.unlisted, 0))

    def names(self) -> Iterable[str]:
        return [*self.envelopes, *self.unlisted]

    def entry(self, name: str, unfinished: Mapping[str, RunningRemoval]) -> StoredSnapshot | None:
        envelope = self.envelopes.get(name)
        if envelope is not None:
            removal = unfinished.get(envelope.snapshot_id)
            whole = removal.fingerprint if removal is not None else None
            return describe_record(name, envelope, self.data, whole_fingerprint=whole)
        if name in unfinished:
            # The engine has taken it off its list and is still removing its data: nobody writes it.
            return None
        return describe_unlisted(name, self.data) if name in self.unlisted else None

    def has_id(self, snapshot_id: str) -> bool:
        return any(envelope.snapshot_id == snapshot_id for envelope in self.envelopes.values())


class Leftover(enum.Enum):
    """What a removal left of a snapshot."""

    NOTHING = enum.auto()
    A_PART = enum.auto()
    ALL = enum.auto()


def left_by(listing: EngineListing, removal: RunningRemoval) -> Leftover:
    """Tell what a removal that has ended, or was interrupted, has left. Raises OSError."""
    if not listing.has_id(removal.snapshot_id):
        return Leftover.NOTHING
    is_whole = fingerprint(listing.data, removal.snapshot_id) == removal.fingerprint
    return Leftover.ALL if is_whole else Leftover.A_PART


def compare_listings(mark: IndexMark, listing: EngineListing) -> Changes:
    before, now = mark.digests, listing.mark.digests
    # What the engine does not list is still being written and looks different every time.
    changed = {name for name, digest in now.items() if digest == 0 or before.get(name) != digest}
    return Changes(
        changed=frozenset(changed),
        gone=frozenset(before.keys() - now.keys()),
        mark=listing.mark,
        foreign=foreign_entries(listing.data),
    )


def foreign_entries(data: EngineData) -> ForeignEntries:
    odd = sorted(name for name in data.directory_names if not is_store_name(name))
    names = sorted(data.other_names) + odd
    examples = tuple(f"{quoted(name)} (not the engine's)" for name in names[:MAX_FOREIGN_EXAMPLES])
    return ForeignEntries(count=len(names), examples=examples)
