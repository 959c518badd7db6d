"""Which agents a change of a pod or a set elsewhere concerns."""

from hypothesis import given
from hypothesis import strategies as st

from common.snapshot_words import Owner
from controller.deletion.books import Books
from controller.deletion.model import FoundSnapshot
from controller.deletion.owners import Reply

PODS = ("web-0", "web-1", "db-0")
SETS = ("", "set-1", "set-2")
NODES = ("host-1", "host-2", "host-3")

answers = st.lists(
    st.tuples(st.sampled_from(NODES), st.lists(st.tuples(st.sampled_from(PODS), st.sampled_from(SETS)), max_size=4)),
    max_size=20,
)


def found(pod_name: str, set_uid: str) -> FoundSnapshot:
    """A snapshot that nobody claims."""
    vm = f"vk-shop-{pod_name}"
    return FoundSnapshot(vm, vm, Owner(f"uid-{pod_name}", "shop", pod_name, vm, set_uid=set_uid))


def answer(books: Books, node: str, *snapshots: FoundSnapshot) -> None:
    """Have a node's agent answer a sync."""
    books.acknowledged(books.open(node), (), Reply(1, 1, snapshots, frozenset()), object(), 0.0)


@given(answers, st.sets(st.sampled_from(NODES)))
def test_the_last_answers_count(given_answers: list[tuple[str, list[tuple[str, str]]]], dropped: set[str]) -> None:
    books, last = Books(), dict[str, list[tuple[str, str]]]()
    for node, named in given_answers:
        last[node] = named
        answer(books, node, *(found(pod, set_uid) for pod, set_uid in named))
    for node in dropped:
        last.pop(node, None)
        books.drop(node)
    for pod in PODS:
        expected = {node for node, named in last.items() if any(each == pod for each, _ in named)}
        assert set(books.with_copies_of_pod("shop", pod)) == expected
        assert not books.with_copies_of_pod("other", pod)
    for uid in SETS[1:]:
        expected = {node for node, named in last.items() if any(each == uid for _, each in named)}
        assert set(books.with_copies_of_set(uid)) == expected
    assert {book.node for book in books} == last.keys()


def test_an_answer_that_comes_after_the_end_of_the_reign_is_not_remembered() -> None:
    books = Books()
    book = books.open("host-1")
    books.clear()
    books.acknowledged(book, (), Reply(1, 1, (found("web-0", "set-1"),), frozenset()), object(), 0.0)
    assert not books.with_copies_of_pod("shop", "web-0")
    assert books.find("host-1") is None


def test_a_snapshot_without_owner_concerns_nobody_elsewhere() -> None:
    books = Books()
    answer(books, "host-1", FoundSnapshot("vk-shop-web-0", "vk-shop-web-0"))
    assert not books.with_copies_of_pod("shop", "web-0")
