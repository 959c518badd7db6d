"""What an agent is told once more of pods that are gone, and when it must not be."""

import msgspec

from controller.deletion.owners import AgentBook, Reply
from controller.deletion.pods import PodRecord


def record(uid: str, name: str = "web-0", *, keep: bool = False) -> PodRecord:
    """A managed pod of node host-1."""
    annotations = {"cocoonset.cocoonstack.io/managed": "true"}
    if keep:
        annotations["vm.cocoonstack.io/keep-snapshot-on-delete"] = "true"
    body = {
        "metadata": {"name": name, "namespace": "shop", "uid": uid, "annotations": annotations},
        "spec": {"nodeName": "host-1"},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=PodRecord)


def tell(book: AgentBook, *named: PodRecord, revision: int = 1) -> None:
    """Have the agent acknowledge a set."""
    book.acknowledged(named, Reply(1, revision, (), frozenset(each.uid for each in named)), object(), 0.0)


def uids(records: list[PodRecord]) -> list[str]:
    return [each.uid for each in records]


def test_a_pod_that_the_agent_never_heard_of_is_named_once_more() -> None:
    book = AgentBook("host-1")
    gone = record("uid-1", keep=True)
    book.depart(gone, 1.0)
    assert uids(book.unheard([])) == ["uid-1"]
    tell(book, gone)
    assert book.unheard([]) == []


def test_a_flag_written_at_the_last_moment_is_told() -> None:
    """F18: the agent knows the pod, and not its flag."""
    book = AgentBook("host-1")
    tell(book, record("uid-1"))
    book.depart(record("uid-1", keep=True), 1.0)
    assert uids(book.unheard([])) == ["uid-1"]


def test_not_while_the_next_pod_of_its_name_is_bound() -> None:
    """F32."""
    book = AgentBook("host-1")
    book.depart(record("uid-1"), 1.0)
    assert book.unheard([record("uid-2")]) == []
    assert uids(book.unheard([record("uid-3", "web-1")])) == ["uid-1"]


def test_never_after_the_next_pod_of_its_name_has_come_and_gone() -> None:
    """F32: to the agent the older one would end what it promised to the one in between."""
    book = AgentBook("host-1")
    book.depart(record("uid-1"), 1.0)
    later = record("uid-2", keep=True)
    tell(book, later)
    book.depart(later, 2.0)
    assert book.unheard([]) == []


def test_never_beside_a_later_one_that_has_to_be_told() -> None:
    """F32: of two that an unreachable agent missed, the last one says what counts."""
    book = AgentBook("host-1")
    book.depart(record("uid-1"), 1.0)
    book.depart(record("uid-2", keep=True), 2.0)
    assert uids(book.unheard([])) == ["uid-2"]


def test_what_a_pod_that_went_unseen_left_is_nobodys_before_it() -> None:
    """F16: the last word of the pod before says nothing about it."""
    book = AgentBook("host-1")
    book.depart(record("uid-1"), 1.0)
    book.depart(record("uid-9", "web-1"), 1.0)
    book.lose(record("uid-2"))
    assert list(book.departures) == ["uid-9"]


def test_decisions_about_older_pods_wait_until_the_later_one_is_told() -> None:
    """F18, F32: what the agent takes for the older pod's may be the later one's, which asked to keep it."""
    book = AgentBook("host-1")
    older, later = record("uid-1"), record("uid-2", keep=True)
    tell(book, older)
    book.depart(older, 1.0)
    assert not book.is_behind(older.owner())
    book.depart(later, 2.0)
    assert book.is_behind(older.owner())
    assert not book.is_behind(later.owner())
    tell(book, later)
    assert not book.is_behind(older.owner())


def test_forgets_what_is_settled_and_what_nobody_comes_for() -> None:
    book = AgentBook("host-1")
    for number in range(3):
        book.depart(record(f"uid-{number}", f"web-{number}"), float(number))
    book.departures["uid-0"].settled_at = 5.0
    book.forget(settled_before=5.0, seen_before=0.0)
    assert set(book.departures) == {"uid-0", "uid-1", "uid-2"}
    book.forget(settled_before=6.0, seen_before=2.0)
    assert set(book.departures) == {"uid-2"}


def test_a_set_on_its_way_crosses_what_is_told_of_a_pod_that_goes() -> None:
    """F32: whether a set is on its way is remembered from the moment the pod went."""
    book = AgentBook("host-1")
    tell(book, record("uid-1"))
    book.depart(record("uid-1"), 1.0)
    assert not book.departures["uid-1"].crossed
    book.unsure = True
    book.depart(record("uid-2", "web-1"), 2.0)
    tell(book)
    assert book.departures["uid-2"].crossed
    assert not book.departures["uid-2"].heard


def test_settled_once_and_forgotten_in_time() -> None:
    book = AgentBook("host-1")
    for number in range(3):
        book.depart(record(f"uid-{number}", f"web-{number}"), float(number))
    settled = book.settle("uid-0", 5.0)
    assert settled is not None
    assert settled.settled_at == 5.0
    assert book.settle("uid-0", 6.0) is None
    assert book.open.keys() == {"uid-1", "uid-2"}
    book.settle("uid-1", 50.0)
    book.forget(settled_before=10.0, seen_before=float("-inf"))
    assert book.departures.keys() == {"uid-1", "uid-2"}
    book.forget(settled_before=10.0, seen_before=3.0)
    assert not book.departures
    assert not book.open
