"""What becomes of a step when the API or the registry says no."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from controller.kube.errors import AlreadyExists, ApiUnavailable, Conflict, Forbidden, KubeError, NotFound
from controller.kube.leadership import Leadership, NotLeadingError
from controller.seats.actions import OutdatedError, SeatActions, TagError
from controller.seats.model import CocoonSet, Condition, Copies, ManifestAnswer, Phase, Pod, TagDeletion
from controller.seats.status_writer import StatusWriter
from controller.seats.steps import Do, Status, Step
from controller.seats.watch import SeatWatch
from controller.seats.wire import SetItem

POD = Pod("ns", "web-0", "pod-uid", set_uid="set-uid", resource_version="7", node="a", vm_name="vk-ns-web-0")
CS = CocoonSet("ns", "web", "set-uid", generation=3, phase=Phase.SUSPENDING)
OLD = {"type": "Ready", "status": "True", "reason": "Fine", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def gone(name: str) -> NotFound:
    error = NotFound("not found", reason="NotFound", status_code=404)
    error.object_name = name
    return error


class Api:
    """Answers every write with the set as it is then, or raises; `writes` are method, path and body."""

    def __init__(self, error: KubeError | None = None, *, suspended: bool = True) -> None:
        self.error = error
        self.suspended = suspended
        self.writes: list[tuple[str, str, Any]] = []

    def _answer(self, method: str, path: str, body: object) -> bytes:
        self.writes.append((method, path, body))
        if self.error is not None:
            raise self.error
        metadata = {"name": "web", "namespace": "ns", "uid": "set-uid", "resourceVersion": "9"}
        return json.dumps({"metadata": metadata, "spec": {"suspend": self.suspended}}).encode()

    async def merge_patch(self, path: str, body: object, **_: object) -> bytes:
        return self._answer("PATCH", path, body)

    async def create(self, path: str, body: object, **_: object) -> bytes:
        return self._answer("POST", path, body)

    async def delete(self, path: str, **options: object) -> bytes:
        return self._answer("DELETE", path, options)


class TagRegistry:
    """Says what becomes of a tag."""

    def __init__(self, outcome: TagDeletion) -> None:
        self.outcome = outcome

    async def manifest(self, vm_name: str) -> ManifestAnswer:
        raise AssertionError(f"nobody asks about {vm_name} here")

    async def delete_tag(self, vm_name: str) -> TagDeletion:
        assert vm_name == POD.vm_name
        return self.outcome


class Told:
    """The agents and the events: what they were told."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        self.events: list[str] = []

    async def holders(self, vm_name: str) -> Copies:
        raise AssertionError(f"nobody asks about {vm_name} here")

    async def keep(self, vm_name: str, nodes: tuple[str, ...]) -> None:
        raise AssertionError(f"nothing of {vm_name} is to be kept on {nodes}")

    async def forget_backup(self, vm_name: str) -> None:
        self.forgotten.append(vm_name)

    def emit(self, _regarding: object, _type: str, reason: str, _note: str) -> None:
        self.events.append(reason)


def acting(
    api: Api, told: Told | None = None, outcome: TagDeletion = TagDeletion.DELETED, *, leads: bool = True
) -> SeatActions:
    leadership = Leadership(lambda: 0.0)
    if leads:
        leadership.grant(1, 10.0)
    client: Any = api
    watch = SeatWatch(client, lambda _: None)
    item = {
        "metadata": {"name": "web", "namespace": "ns", "uid": "set-uid", "generation": 3, "resourceVersion": "5"},
        "spec": {"suspend": False, "agent": {"image": "vm"}},
        "status": {"conditions": [OLD]},
    }
    watch.sets.items["ns/web"] = msgspec.convert(item, SetItem)
    events: Any = told
    return SeatActions(client, watch, leadership, TagRegistry(outcome), told or Told(), events)


def step(do: Do, **fields: Any) -> Step:  # noqa: ANN401 - any field
    chosen: dict[str, Any] = {"pod": POD, "vm_name": POD.vm_name, "node": "a"} | fields
    return Step(do, "a test", **chosen)


@pytest.mark.parametrize("error", [None, gone("web-0"), Conflict("another UID", status_code=409)])
async def test_a_delete_names_the_uid_and_404_and_409_are_done(error: KubeError | None) -> None:
    api = Api(error)
    await acting(api).do(CS, step(Do.DELETE))
    assert api.writes == [("DELETE", "/api/v1/namespaces/ns/pods/web-0", {"uid": "pod-uid"})]


async def test_a_delete_that_is_refused_is_tried_again() -> None:
    with pytest.raises(Forbidden):
        await acting(Api(Forbidden("a policy", status_code=403))).do(CS, step(Do.DELETE))


async def test_a_pod_bound_at_the_last_moment_is_not_deleted() -> None:
    api = Api(Conflict("changed", status_code=409))
    with pytest.raises(OutdatedError):
        await acting(api).do(CS, step(Do.DELETE_UNBOUND))
    assert api.writes[0][2] == {"uid": "pod-uid", "resource_version": "7"}


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("a policy", status_code=403),
        ApiUnavailable("no answer"),
        Conflict("a webhook", status_code=409),
        NotFound("a webhook", status_code=404),
        KubeError("odd", reason="Odd"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_flag_that_cannot_be_written_is_passed_over_and_told(error: KubeError) -> None:
    told = Told()
    api = Api(error)
    await acting(api, told).do(CS, step(Do.FLAG))
    assert told.events == ["KeepFlagFailed"]
    assert api.writes[0][2]["metadata"]["uid"] == "pod-uid"


async def test_a_pod_that_is_gone_needs_no_flag() -> None:
    told = Told()
    await acting(Api(gone("web-0")), told).do(CS, step(Do.FLAG))
    assert told.events == []


async def test_a_set_woken_in_this_moment_ends_the_release() -> None:
    with pytest.raises(OutdatedError):
        await acting(Api(suspended=False)).do(CS, step(Do.STASH))
    await acting(Api(suspended=True)).do(CS, step(Do.STASH))


async def test_a_pod_that_exists_already_is_fine_and_any_other_refusal_told() -> None:
    told = Told()
    await acting(Api(AlreadyExists("there", status_code=409)), told).do(CS, step(Do.CREATE, restores=True))
    assert told.events == []
    with pytest.raises(Forbidden):
        await acting(Api(Forbidden("quota", status_code=403)), told).do(CS, step(Do.CREATE))
    assert told.events == ["WakeFailed"]


@pytest.mark.parametrize(
    ("outcome", "events", "forgotten"),
    [
        (TagDeletion.DELETED, [], [POD.vm_name]),
        (TagDeletion.ABSENT, [], [POD.vm_name]),
        (TagDeletion.KEPT, ["HibernateTagKept"], []),
    ],
)
async def test_what_becomes_of_the_tag(outcome: TagDeletion, events: list[str], forgotten: list[str]) -> None:
    told = Told()
    await acting(Api(), told, outcome).do(CS, step(Do.DROP_TAG))
    assert (told.events, told.forgotten) == (events, forgotten)


async def test_a_tag_that_could_not_be_deleted_is_tried_again() -> None:
    told = Told()
    with pytest.raises(TagError):
        await acting(Api(), told, TagDeletion.FAILED).do(CS, step(Do.DROP_TAG))
    assert (told.events, told.forgotten) == (["HibernateTagNotDeleted"], [])


@pytest.mark.parametrize("do", [do for do in Do if not do.asks])
async def test_only_the_leader_does_anything(do: Do) -> None:
    api = Api()
    actions = acting(api, leads=False)
    with pytest.raises(NotLeadingError):
        await actions.do(CS, step(do))
    assert api.writes == []


@pytest.mark.parametrize(
    ("status", "since"), [("Unknown", OLD["lastTransitionTime"]), ("True", "2026-02-01T00:00:00Z")]
)
async def test_a_status_keeps_others_conditions_and_the_time_of_what_did_not_change(status: str, since: str) -> None:
    api = Api()
    client: Any = api
    watch = SeatWatch(client, lambda _: None)
    ours = OLD | {"type": "SeatReleased", "status": "Unknown"}
    metadata = {"name": "web", "namespace": "ns", "uid": "set-uid"}
    watch.sets.items["ns/web"] = msgspec.convert({"metadata": metadata, "status": {"conditions": [OLD, ours]}}, SetItem)
    said: list[str] = []
    writer = StatusWriter(client, watch, lambda *words: said.append(words[2]), lambda: datetime(2026, 2, 1, tzinfo=UTC))
    wanted = Status(Phase.SUSPENDED, (Condition("SeatReleased", status, "Suspended"),))
    await writer.write(CS, Step(Do.STATUS, "a test", status=wanted))
    body: Mapping[str, Any] = api.writes[-1][2]
    assert body["metadata"] == {"uid": "set-uid"}
    found = {each["type"]: each for each in body["status"]["conditions"]}
    assert found["Ready"] == OLD
    assert (found["SeatReleased"]["status"], found["SeatReleased"]["lastTransitionTime"]) == (status, since)
    assert said == ["Suspended"]
