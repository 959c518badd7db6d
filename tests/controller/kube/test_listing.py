"""Where the next page is asked for, and what happens when a server writes its pages another way."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from controller.kube.listing import PagedList, early_token
from controller.kube.objects import Metadata

PATH = "/api/v1/things"


class Thing(msgspec.Struct):
    metadata: Metadata


class Pages:
    """A transport that serves pages by their tokens and notes what it was asked for."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self.pages = pages
        self.asked: list[str] = []

    async def get_bytes(self, path: str, query: Mapping[str, str]) -> bytes:
        assert path == PATH
        self.asked.append(query.get("continue", ""))
        return self.pages[self.asked[-1]]

    def stream_bytes(self, path: str, query: Mapping[str, str], inactivity_seconds: float) -> Any:  # noqa: ANN401 - not called
        raise NotImplementedError


def page(*names: str, token: str = "", items_first: bool = False) -> bytes:
    items = {"items": [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]}
    metadata = {"metadata": {"resourceVersion": "9"} | ({"continue": token} if token else {})}
    return json.dumps(items | metadata if items_first else metadata | items, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("body", "token"),
    [
        pytest.param(page("a", token="next"), "next", id="before the items"),
        pytest.param(page("a"), "", id="the last page"),
        pytest.param(page("a", token="next", items_first=True), "", id="after the items"),
        pytest.param(page("a" * 5000, token="next", items_first=True), "", id="far after the items"),
        pytest.param(b'{"metadata":{"continue":7},"items":[]}', "", id="no text"),
        pytest.param(b'{"metadata":{"continue":"x","items":[]}}', "", id="not where it seems"),
        pytest.param(b"", "", id="nothing"),
    ],
)
def test_token_is_found_only_where_servers_write_it(body: bytes, token: str) -> None:
    assert early_token(body) == token


@pytest.mark.parametrize("items_first", [False, True])
async def test_all_pages_are_read_once(items_first: bool) -> None:
    first, second, third = (
        page(name, token=token, items_first=items_first) for name, token in (("a", "1"), ("b", "2"), ("c", ""))
    )
    pages = Pages({"": first, "1": second, "2": third})
    found, version = await PagedList(pages, PATH, Thing, {}, 1).read_all()
    assert (sorted(found), version) == (["a", "b", "c"], "9")
    assert pages.asked == ["", "1", "2"]


async def test_token_of_the_whole_page_goes_before_the_early_one() -> None:
    """A page that names two tokens: what was asked for too early is thrown away."""
    first, last = (b'"metadata":{"resourceVersion":"9","continue":"%b"}' % token for token in (b"wrong", b"right"))
    odd = b'{%b,"items":[],%b}' % (first, last)
    pages = Pages({"": odd, "wrong": page("x"), "right": page("a")})
    found, _ = await PagedList(pages, PATH, Thing, {}, 1).read_all()
    assert sorted(found) == ["a"]
