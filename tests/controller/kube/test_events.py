"""Events: seen by people, never a flood."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.errors import ApiUnavailable, NotFound
from controller.kube.events import EventClient, EventRecorder, Regarding
from controller.kube.retry import Retry
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support.virtual_time import run_virtually
from tests.support.waiting import wait_for_async

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


class Sink:
    """Takes what the recorder sends; fails as often as told."""

    def __init__(self) -> None:
        self.created: list[Any] = []
        self.patched: list[Any] = []
        self.failures = 0
        self.expired = False

    async def create(self, path: str, body: object, *, retry: Retry | None = None, lean: bool = False) -> bytes:
        """Note it."""
        if self.failures:
            self.failures -= 1
            raise ApiUnavailable(f"no answer for {path} {retry} {lean}")
        self.created.append(body)
        return b"{}"

    async def merge_patch(self, path: str, body: object, *, retry: Retry | None = None) -> bytes:
        """Note it."""
        if self.expired:
            raise NotFound(f"no event {path} {retry}")
        self.patched.append((path, body))
        return b"{}"


@contextlib.asynccontextmanager
async def recording(client: EventClient, clock: list[float]) -> AsyncIterator[tuple[EventRecorder, list[str]]]:
    outcomes: list[str] = []
    recorder = EventRecorder(client, clock=lambda: clock[0], count=outcomes.append)
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder, outcomes
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_loop_sends_one_event_and_later_its_count() -> None:
    sink, clock = Sink(), [0.0]
    async with recording(sink, clock) as (recorder, outcomes):
        for turn in range(1000):
            clock[0] = turn * 0.1
            recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "the same")
            if turn == 0:
                await wait_for_async(lambda: outcomes == ["sent"])
        clock[0] = 301.0
        recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "the same")
        await wait_for_async(lambda: outcomes == ["sent", "sent"])
    assert len(sink.created) == 1
    assert [body["series"]["count"] for _, body in sink.patched] == [1001]


async def test_different_statements_are_different_events() -> None:
    sink = Sink()
    async with recording(sink, [0.0]) as (recorder, outcomes):
        for name, reason in (("a", "X"), ("a", "Y"), ("b", "X")):
            recorder.emit(Regarding("Node", name), "Normal", reason, "note")
        await wait_for_async(lambda: len(outcomes) == 3)
    assert len({body["metadata"]["name"] for body in sink.created}) == 3


async def test_a_flood_of_different_statements_is_cut() -> None:
    sink = Sink()
    async with recording(sink, [0.0]) as (recorder, outcomes):
        for turn in range(5000):
            recorder.emit(Regarding("Node", "a"), "Warning", "Refused", f"different each time {turn}")
        await wait_for_async(lambda: outcomes.count("sent") == 5)
    assert outcomes.count("dropped") == 3000


def test_many_different_statements_are_sent_evenly() -> None:
    async def send() -> float:
        sink = Sink()
        async with recording(sink, [0.0]) as (recorder, outcomes):
            for turn in range(2000):
                recorder.emit(Regarding("Node", "a"), "Warning", "Refused", f"different each time {turn}")
            while len(outcomes) < 2000:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.005)
        assert outcomes == ["sent"] * 2000
        return asyncio.get_running_loop().time()

    assert run_virtually(send()) == pytest.approx(20, rel=0.01)


async def test_a_failed_event_is_sent_with_the_next_repetition() -> None:
    sink, clock = Sink(), [0.0]
    sink.failures = 1
    async with recording(sink, clock) as (recorder, outcomes):
        recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "note")
        await wait_for_async(lambda: outcomes == ["failed"])
        clock[0] = 301.0
        recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "note")
        await wait_for_async(lambda: outcomes == ["failed", "sent"])
    assert sink.created[0]["series"]["count"] == 2


async def test_an_event_that_expired_in_the_api_is_made_anew() -> None:
    sink, clock = Sink(), [0.0]
    async with recording(sink, clock) as (recorder, outcomes):
        recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "note")
        await wait_for_async(lambda: len(outcomes) == 1)
        sink.expired = True
        clock[0] = 400.0
        recorder.emit(Regarding("Node", "a"), "Warning", "Refused", "note")
        await wait_for_async(lambda: len(outcomes) == 2)
    assert len({body["metadata"]["name"] for body in sink.created}) == 2


async def test_the_real_api_takes_them(control_plane: ControlPlane, kube: KubeApi) -> None:
    access = await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))
    clock = [0.0]
    async with KubeClient(access) as client, recording(client, clock) as (recorder, outcomes):
        about = Regarding("Node", "node-with-events")
        recorder.emit(about, "Warning", "Refused", "ä" * 3000)
        await wait_for_async(lambda: outcomes == ["sent"])
        clock[0] = 301.0
        recorder.emit(about, "Warning", "Refused", "ä" * 3000)
        await wait_for_async(lambda: outcomes == ["sent", "sent"])
    (event,) = [item for item in kube.items(EVENTS) if item["regarding"]["name"] == "node-with-events"]
    assert (event["reason"], event["type"], event["series"]["count"]) == ("Refused", "Warning", 2)
    assert event["reportingController"] == "cocoon-node-controller"
    kube.delete(f"{EVENTS}/{event['metadata']['name']}")
