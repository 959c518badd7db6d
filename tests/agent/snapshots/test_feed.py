"""Changes for watchers: a reader gets the newest of what it knows, however slowly it reads, and never a queue."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.feed import Change, ChangeFeed, Watcher

NAMES = st.sampled_from("abcde")


async def test_a_slow_watcher_gets_the_newest_of_each_in_the_order_of_revisions() -> None:
    feed = ChangeFeed()
    feed.publish("before", Change.ADDED)
    with feed.watching() as watcher:
        for name in ("a", "b", "a", "c", "b"):
            feed.publish(name, Change.CHANGED)
        assert await watcher.wait(0)
        assert watcher.take(2) == [("a", 4), ("c", 5)]
        assert watcher.take(9) == [("b", 6)]
        assert not await watcher.wait(0)
        waiting = asyncio.create_task(watcher.wait(60))
        await asyncio.sleep(0)
        feed.wake_all()
        assert await waiting
        assert watcher.take(9) == []
    feed.publish("after", Change.ADDED)
    assert watcher.take(9) == []


def test_what_comes_and_goes_leaves_nothing_behind_for_a_reader_that_never_reads() -> None:
    feed = ChangeFeed()
    with feed.watching() as watcher:
        feed.publish("known", Change.CHANGED)
        for number in range(10_000):
            feed.publish(f"passing-{number}", Change.ADDED)
            feed.publish(f"passing-{number}", Change.CHANGED)
            feed.publish(f"passing-{number}", Change.REMOVED)
        feed.publish("stays", Change.ADDED)
        assert len(watcher) == 2
        assert [name for name, _ in watcher.take(10)] == ["known", "stays"]


class Reader:
    """A client of a watch: the names it believes to exist. `present` is the truth."""

    def __init__(self, watcher: Watcher, present: dict[str, int]) -> None:
        self.watcher = watcher
        self.present = present
        self.known: dict[str, int] = {}

    def list_page(self, size: int) -> None:
        """Be told of a page of what exists, as at the beginning of a watch."""
        page = dict(sorted(self.present.items())[:size])
        self.watcher.has_told(page)
        self.known |= page

    def read(self, limit: int) -> None:
        """Be told of some changes."""
        for name, _ in self.watcher.take(limit):
            if name in self.present:
                self.known[name] = self.present[name]
            else:
                self.known.pop(name, None)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NAMES),
        st.tuples(st.just("change"), NAMES),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("read"), st.integers(1, 3)),
    ),
    max_size=60,
)


@given(st.sets(NAMES), st.integers(0, 5), STEPS)
def test_a_reader_knows_the_truth_in_the_end_and_is_owed_no_more_than_it_knows_and_there_is(
    before: set[str], listed: int, steps: list[tuple[str, object]]
) -> None:
    feed, version = ChangeFeed(), 0
    present = dict.fromkeys(before, 0)
    with feed.watching() as watcher:
        reader = Reader(watcher, present)
        reader.list_page(listed)
        unlisted = {name: 0 for name in present if name not in reader.known}
        for kind, value in steps:
            name, version = str(value), version + 1
            if kind == "read":
                reader.read(int(name))
            elif kind == "remove" and name in present:
                del present[name]
                feed.publish(name, Change.REMOVED)
            elif kind != "remove" and (name in present) == (kind == "change"):
                present[name] = version
                feed.publish(name, Change.CHANGED if kind == "change" else Change.ADDED)
            assert len(watcher) <= len(reader.known.keys() | present.keys() | unlisted.keys())
        reader.list_page(len(present))
        while len(watcher):
            reader.read(2)
        assert reader.known == present
