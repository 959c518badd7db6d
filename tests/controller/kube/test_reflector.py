"""The copy a reflector keeps, against a server in every kind of trouble and against the real API server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.objects import Change, Metadata, WatchTransport
from controller.kube.reflector import Reflector, ReflectorLimits
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support.scripted_api import ScriptedApi, Step, event, failure, item, page, raw, watch
from tests.support.waiting import wait_for_async

PATH = "/api/v1/things"
QUICK = ReflectorLimits(page_size=2, inactivity_seconds=0.3, first_backoff_seconds=0.01, max_backoff_seconds=0.05)


class Thing(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: str = ""


class Copy:
    """A running reflector and everything it told."""

    def __init__(self, transport: WatchTransport, path: str = PATH, limits: ReflectorLimits = QUICK) -> None:
        self.changes: list[Change[Thing]] = []
        self.reflector = Reflector(transport, path, Thing, self.changes.append, limits=limits)

    @property
    def told(self) -> list[str]:
        return [f"{c.kind.value} {c.key} {c.item.metadata.resource_version}" for c in self.changes]

    @property
    def versions(self) -> dict[str, str]:
        return {key: thing.metadata.resource_version for key, thing in self.reflector.items.items()}


@contextlib.asynccontextmanager
async def reflecting(*steps: Step, limits: ReflectorLimits = QUICK) -> AsyncIterator[tuple[Copy, ScriptedApi]]:
    async with ScriptedApi(*steps) as api, api.client() as client:
        copy = Copy(client, limits=limits)
        task = asyncio.create_task(copy.reflector.run())
        try:
            yield copy, api
            assert not task.done(), "a reflector must not end by itself"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_pages_make_one_copy() -> None:
    async with reflecting(
        page([item("a", 1), item("b", 2)], 9, next_token="t1"),
        page([item("c", 3)], 9, after="t1"),
        watch(event("MODIFIED", item("b", 10)), event("DELETED", item("c", 11)), since=9, then="open"),
    ) as (copy, api):
        await wait_for_async(lambda: len(copy.changes) == 5, what="all changes")
        assert copy.versions == {"a": "1", "b": "10"}
        assert copy.told == ["added a 1", "added b 2", "added c 3", "modified b 10", "deleted c 11"]
        assert "limit=2" in api.requests[0]
        assert copy.changes[-1].seen


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(
            [page([item("a", 1)], 9, next_token="t1"), failure(500), failure(500), failure(500), failure(500)],
            id="500 after half the pages",
        ),
        pytest.param([raw(b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"')], id="cut body"),
        pytest.param([raw(b'{"items":[]}')], id="no resource version"),
        pytest.param([raw(b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":7}}]}')], id="wrong type"),
        pytest.param([failure(403, "Forbidden")], id="forbidden"),
    ],
)
async def test_half_list_never_becomes_the_copy(trouble: list[Step]) -> None:
    """F17: a list that fails, or fails after half the pages, changes nothing and is tried again."""
    good = [page([item("a", 1), item("b", 2)], 20, next_token="t"), page([item("c", 3)], 20, after="t")]
    async with reflecting(*trouble, *good) as (copy, _):
        await asyncio.wait_for(copy.reflector.wait_synced(), 20)
        assert copy.versions == {"a": "1", "b": "2", "c": "3"}
        assert copy.told == ["added a 1", "added b 2", "added c 3"], "nothing told twice, nothing told early"


async def test_later_list_that_fails_keeps_the_copy() -> None:
    """F17: a failing list after a lost version leaves the copy as it was."""
    async with reflecting(
        page([item("a", 1), item("b", 2)], 9),
        watch(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}), then="open"),
        failure(403),
        page([item("a", 1)], 30, next_token="x"),
        failure(403),
        page([item("a", 1), item("b", 31)], 31),
    ) as (copy, _):
        await wait_for_async(lambda: copy.reflector.lists == 2, what="the second list")
        assert copy.versions == {"a": "1", "b": "31"}
        assert copy.told == ["added a 1", "added b 2", "modified b 31"]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(
            watch(event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}), then="open"), id="in mid-stream"
        ),
        pytest.param(failure(410, "Gone"), id="at connect"),
    ],
)
async def test_410_relists_and_diffs(gone: Step) -> None:
    """F15: nothing missed, nothing done twice; a deletion seen only by comparing says so."""
    async with reflecting(
        page([item("a", 1), item("b", 2)], 9),
        gone,
        page([item("a", 1), item("c", 40)], 41),
        watch(event("ADDED", item("d", 42)), since=41, then="open"),
    ) as (copy, _):
        await wait_for_async(lambda: "d" in copy.reflector.items, what="the change after the second list")
        assert copy.told == ["added a 1", "added b 2", "deleted b 2", "added c 40", "added d 42"]
        assert [change.seen for change in copy.changes[2:]] == [False, False, True]


async def test_object_made_again_under_its_name_is_a_deletion_and_an_addition() -> None:
    """F15, F32: the same name with another UID is another object."""
    async with reflecting(
        page([item("a", 1, uid="first")], 9), failure(410), page([item("a", 5, uid="second")], 12)
    ) as (copy, _):
        await wait_for_async(lambda: copy.reflector.lists == 2, what="the second list")
        assert copy.told == ["added a 1", "deleted a 1", "added a 5"]
        assert [c.before is None for c in copy.changes] == [True, False, True]


async def test_bookmark_moves_the_version() -> None:
    """F15: after a bookmark the watch goes on from it, without a list."""
    async with reflecting(
        page([item("a", 1)], 9),
        watch(event("BOOKMARK", {"metadata": {"resourceVersion": "70"}}), since=9),
        watch(event("MODIFIED", item("a", 71)), since=70, then="open"),
    ) as (copy, _):
        await wait_for_async(lambda: copy.versions == {"a": "71"}, what="the change after the bookmark")
        assert copy.reflector.lists == 1


@pytest.mark.parametrize("then", ["end", "cut"])
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(event("MODIFIED", item("a", 11))[:30], id="half a line"),
        pytest.param(event("MODIFIED", item("a", 11))[:30] + b"\n", id="half a line with its end"),
        pytest.param(b"\xff\xfe\n", id="no text"),
        pytest.param(b'{"type":"MODIFIED"}\n', id="no object"),
        pytest.param(event("STRANGE", item("a", 11)), id="unknown type"),
        pytest.param(event("ERROR", {"code": 500, "reason": "InternalError"}), id="other error"),
    ],
)
async def test_broken_stream_goes_on_at_the_last_version(then: str, rest: bytes) -> None:
    """F15: a line cut in half is neither taken nor skipped."""
    async with reflecting(
        page([item("a", 1)], 9),
        watch(event("MODIFIED", item("a", 10)), rest, since=9, then=then),
        watch(event("MODIFIED", item("a", 11)), since=10, then="open"),
    ) as (copy, _):
        await wait_for_async(lambda: copy.versions == {"a": "11"}, what="the change after the broken stream")
        assert copy.told == ["added a 1", "modified a 10", "modified a 11"]
        assert copy.reflector.lists == 1


async def test_half_open_connection_is_given_up() -> None:
    """A watch that is silent beyond the limit is opened again at its version."""
    async with reflecting(
        page([item("a", 1)], 9),
        watch(since=9, then="open"),
        watch(event("MODIFIED", item("a", 10)), since=9, then="open"),
    ) as (copy, _):
        await wait_for_async(lambda: copy.versions == {"a": "10"}, what="the change on the second watch")
        assert copy.reflector.lists == 1


async def test_expiring_pages_end_in_an_unpaged_list() -> None:
    cycle = [page([item("a", 1)], 9, next_token="t"), failure(410, "Expired")]
    async with reflecting(*cycle, *cycle, *cycle, page([item("a", 1), item("b", 2)], 10)) as (copy, api):
        await asyncio.wait_for(copy.reflector.wait_synced(), 20)
        assert copy.versions == {"a": "1", "b": "2"}
        assert "limit" not in api.requests[6]


async def test_retry_after_is_obeyed_and_problem_shown() -> None:
    """F13: the server's wish counts, the process lives, the problem is there to be read until it is over."""
    async with reflecting(failure(429, "TooManyRequests", retry_after="10"), limits=QUICK) as (copy, api):
        await wait_for_async(lambda: "HTTP 429" in copy.reflector.problem, what="the problem")
        assert len(api.requests) == 1
        assert not copy.reflector.has_synced


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60))
def test_any_cut_into_chunks_gives_the_same_events(versions: list[int], size: int) -> None:
    stream = b"".join(event("MODIFIED", item(f"n{v % 5}", 100 + n)) for n, v in enumerate(versions))
    chunks = [stream[start : start + size] for start in range(0, len(stream), size)]

    async def read() -> list[str]:
        async def pieces() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        copy = Copy(_NoTransport())
        await copy.reflector._read_events(pieces())
        return [c.item.metadata.resource_version for c in copy.changes]

    assert asyncio.run(read()) == [str(100 + n) for n in range(len(versions))]


class _NoTransport:
    async def get_bytes(self, path: str, query: object) -> bytes:
        raise NotImplementedError

    def stream_bytes(
        self, path: str, query: object, inactivity_seconds: float
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        raise NotImplementedError


CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS_PATH = "/apis/reflector.example/v1/things"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.reflector.example"},
    "spec": {
        "group": "reflector.example",
        "scope": "Cluster",
        "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"data": {"type": "string"}}}},
            }
        ],
    },
}


def _thing(name: str) -> dict[str, object]:
    return {"apiVersion": "reflector.example/v1", "kind": "Thing", "metadata": {"name": name}, "data": "x"}


@contextlib.asynccontextmanager
async def _real(control_plane: ControlPlane, version: str = "") -> AsyncIterator[Copy]:
    access = await load_access(kubeconfig=str(control_plane.kubeconfig("admin")))
    async with KubeClient(access) as client:
        copy = Copy(client, THINGS_PATH, ReflectorLimits(page_size=2))
        copy.reflector._version = version
        task = asyncio.create_task(copy.reflector.run())
        try:
            yield copy
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_real_api_server(control_plane: ControlPlane, kube: KubeApi) -> None:
    """F15: pages, changes, and a version older than the server's cache, which answers 200 and an ERROR event 410."""
    names = [f"t{n}" for n in range(5)]
    await asyncio.to_thread(kube.create, CRD_PATH, CRD)
    try:
        async with _real(control_plane) as copy:
            await asyncio.wait_for(copy.reflector.wait_synced(), 60)
            for name in names:
                await asyncio.to_thread(kube.create, THINGS_PATH, _thing(name))
            await wait_for_async(lambda: copy.reflector.items.keys() == set(names), what="the watched objects")
            await asyncio.to_thread(kube.delete, f"{THINGS_PATH}/{names[0]}")
            await wait_for_async(lambda: names[0] not in copy.reflector.items, what="the deletion")
            assert copy.changes[-1].seen
            assert copy.reflector.items[names[1]].data == "x"

        async with _real(control_plane, version="5") as late:
            await asyncio.wait_for(late.reflector.wait_synced(), 60)
            assert late.reflector.items.keys() == set(names[1:])
            assert late.reflector.lists == 1
    finally:
        await asyncio.to_thread(kube.delete, f"{CRD_PATH}/things.reflector.example")
