"""A kept page is sent only while nothing has changed, and what is kept is bounded."""

import pytest

from agent.snapshots.encoded_pages import EncodedPages
from agent.snapshots.ownership import OwnerSet
from common.snapshot_words import Owner

OWNERS = OwnerSet()
OTHERS = OwnerSet((Owner("uid", "ns", "pod", "vk-ns-pod"),))


@pytest.mark.parametrize(
    ("request_bytes", "revision", "owners", "reply"),
    [
        (b"first", 7, OWNERS, b"page"),
        (b"second", 7, OWNERS, None),
        (b"first", 8, OWNERS, None),
        (b"first", 7, OTHERS, None),
        (b"first", 7, OwnerSet(), None),
    ],
    ids=["unchanged", "another page", "a snapshot changed", "other owners", "a later sync with equal owners"],
)
def test_a_page_is_kept_for_one_revision_and_one_set_of_owners(
    request_bytes: bytes, revision: int, owners: OwnerSet, reply: bytes | None
) -> None:
    pages = EncodedPages()
    pages.keep(b"first", b"page", 7, OWNERS)
    assert pages.get(request_bytes, revision, owners) == reply


def test_an_old_page_does_not_come_back() -> None:
    pages = EncodedPages()
    pages.keep(b"first", b"old", 7, OWNERS)
    pages.keep(b"second", b"new", 8, OWNERS)
    assert pages.get(b"first", 8, OWNERS) is None
    assert pages.get(b"first", 7, OWNERS) is None
    assert pages.get(b"second", 8, OWNERS) == b"new"


def test_no_more_is_kept_than_allowed_and_a_change_makes_room() -> None:
    pages = EncodedPages(limit_bytes=20)
    pages.keep(b"a", b"x" * 15, 1, OWNERS)
    pages.keep(b"b", b"y" * 15, 1, OWNERS)
    assert (pages.get(b"a", 1, OWNERS), pages.get(b"b", 1, OWNERS)) == (b"x" * 15, None)
    pages.keep(b"b", b"y" * 15, 2, OWNERS)
    assert pages.get(b"b", 2, OWNERS) == b"y" * 15
