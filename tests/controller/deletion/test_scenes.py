"""Single scenes of the simulated cluster, in virtual time and without faults: who is looked at when, and how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.controller.deletion.simulation import KEEP, STASH, Fate, SimController, World, pod_object, set_object
from tests.support.sim_agent import SimAgent
from tests.support.sim_api import PODS, SETS, Json
from tests.support.virtual_time import run_virtually

VM = "vk-shop-web-0"
KEY = "shop/web-0"
Scene = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A cluster of `count` nodes with one controller that leads."""

    def __init__(self, count: int, *, days: bool) -> None:
        self.world = World(random.Random(1))  # noqa: S311 - a test's chance, no secret
        self.nodes = [f"host-{number}" for number in range(count)]
        for node in self.nodes:
            self.world.agents[node] = SimAgent(node, self.world.now, self.world.on_purge)
            self.world.channels[node] = object()
        self.controller = SimController(self.world, days=days)

    async def pod(self, node: str, owner: Json | None = None, *, name: str = "web-0", **annotations: str) -> Json:
        """Make a pod whose VM runs, with a snapshot; `annotations` by their last word."""
        pod = pod_object(self.world.api.uid(), name, node, owner)
        pod["metadata"]["annotations"] |= {
            f"vm.cocoonstack.io/{key.replace('_', '-')}": v for key, v in annotations.items()
        }
        pod["metadata"]["annotations"]["vm.cocoonstack.io/id"] = "vm"
        pod["status"]["containerStatuses"] = [{"state": {"running": {}}}]
        self.world.fates[pod["metadata"]["uid"]] = Fate(node, owner["metadata"]["uid"] if owner else "", name)
        self.world.agents[node].write(f"vk-shop-{name}", pod["metadata"]["uid"])
        return await self.world.api.put(PODS, pod)

    async def end(self, pod: Json, *, evicted: bool = False) -> None:
        """Delete a pod."""
        pod = self.world.api.objects[PODS][f"shop/{pod['metadata']['name']}"]
        if evicted:
            pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
            pod = await self.world.api.put(PODS, pod)
        fate = self.world.fates[pod["metadata"]["uid"]]
        fate.gone, fate.kept = True, pod["metadata"]["annotations"].get(KEEP) == "true"
        pod["metadata"]["deletionTimestamp"] = "now"
        await self.world.api.put(PODS, pod)
        await self.world.api.remove(PODS, f"shop/{pod['metadata']['name']}")

    def state(self, node: str, name: str = VM) -> str:
        """Say what a node has of a VM: nothing, a copy, or a promise with its reason."""
        snapshot = self.world.agents[node].snapshots.get(name)
        if snapshot is None:
            return "gone"
        kept = self.world.agents[node].reason(name)
        return kept.name if kept is not None else "unclaimed"

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait in virtual time."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)


def play(scene: Scene, count: int = 3, *, days: bool = False) -> None:
    """Play one scene; nothing that is still needed may be removed in it."""

    async def run() -> World:
        stage = Stage(count, days=days)
        await stage.until(lambda: stage.controller.elector.leadership.epoch is not None, 10)
        await asyncio.sleep(5)
        await scene(stage)
        stage.controller.check_alive()
        await stage.controller.kill()
        return stage.world

    assert run_virtually(run()).wrongs == []


@pytest.mark.parametrize(
    ("restores", "expected"),
    [
        pytest.param(True, "gone", id="row 4, woken"),
        pytest.param(False, "unclaimed", id="row 5, booted"),
    ],
)
def test_the_next_pod_elsewhere_is_noticed_within_seconds(restores: bool, expected: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.end(await stage.pod("host-0", keep_snapshot_on_delete="true"))
        await stage.until(lambda: stage.state("host-0") == "SEAT_RELEASE", 5)
        for fate in stage.world.fates.values():
            fate.moved_on = True
        await stage.pod("host-1", restore_from_hibernate="true" if restores else "")
        await stage.until(lambda: stage.state("host-0") == expected, 5)

    play(scene)


def test_a_superseded_copy_stays_nobodys_when_the_next_pod_is_gone() -> None:
    """What the first pod said last, the flag, does not count again."""

    async def scene(stage: Stage) -> None:
        await stage.end(await stage.pod("host-0", keep_snapshot_on_delete="true"))
        await stage.until(lambda: stage.state("host-0") == "SEAT_RELEASE", 5)
        second = await stage.pod("host-1")
        await stage.until(lambda: stage.state("host-0") == "unclaimed", 5)
        await stage.end(second)
        await stage.until(lambda: stage.state("host-1") == "gone", 5)
        await asyncio.sleep(400)
        assert stage.state("host-0") == "unclaimed"

    play(scene)


def test_only_nodes_with_copies_are_asked_again() -> None:
    """Two hundred pods start elsewhere within a second: one node has a copy of theirs and is asked once or twice."""

    async def scene(stage: Stage) -> None:
        for number in range(20):
            await stage.end(await stage.pod("host-0", name=f"web-{number}", keep_snapshot_on_delete="true"))
        await asyncio.sleep(20)
        syncs = {node: stage.world.agents[node].syncs for node in stage.nodes}
        for number in range(200):
            await stage.pod("host-1", name=f"web-{number}")
        await stage.until(lambda: all(stage.state("host-0", f"vk-shop-web-{n}") == "unclaimed" for n in range(20)), 10)
        asked = {node: stage.world.agents[node].syncs - before for node, before in syncs.items()}
        assert 1 <= asked.pop("host-0") <= 5
        asked.pop("host-1")
        assert set(asked.values()) == {0}

    play(scene, count=50)


def test_a_promise_is_made_at_once_and_the_claims_that_ended_are_told_together() -> None:
    async def scene(stage: Stage) -> None:
        pods = [await stage.pod("host-0", name=f"web-{n}", keep_snapshot_on_delete="true") for n in range(20)]
        await asyncio.sleep(5)
        before = stage.world.agents["host-0"].syncs
        for pod in pods:
            await stage.end(pod)
        names = [f"vk-shop-{pod['metadata']['name']}" for pod in pods]
        await stage.until(lambda: all(stage.state("host-0", name) == "SEAT_RELEASE" for name in names), 1)
        await asyncio.sleep(30)
        assert 1 <= stage.world.agents["host-0"].syncs - before <= 2
        assert not stage.controller.reconciler.undone()

    play(scene)


@pytest.mark.parametrize("minutes", [2, 30])
def test_an_agent_that_is_back_is_decided_about_at_once(minutes: int) -> None:
    """Not after the backoff that its silence has grown."""

    async def scene(stage: Stage) -> None:
        pod = await stage.pod("host-0")
        await asyncio.sleep(5)
        stage.world.agents["host-0"].answers = False
        await stage.end(pod)
        await asyncio.sleep(minutes * 60)
        assert stage.state("host-0") == "unclaimed"
        stage.world.agents["host-0"].answers = True
        stage.world.channels["host-0"] = object()
        await stage.until(lambda: stage.state("host-0") in ("gone", "unclaimed"), 0.2)
        await stage.until(lambda: not stage.controller.reconciler.undone(), 5)

    play(scene)


def test_a_disruption_is_renewed_while_its_next_pod_is_awaited() -> None:
    """Row 10: three days after the eviction the set still waits for a seat; then it is deleted."""

    async def scene(stage: Stage) -> None:
        owner = await stage.world.api.put(SETS, set_object(stage.world.api.uid(), "web"))
        await stage.end(await stage.pod("host-0", owner), evicted=True)
        await stage.until(lambda: stage.state("host-0") == "DISRUPTION", 5)
        await asyncio.sleep(3 * 24 * 3600)
        assert stage.state("host-0") == "DISRUPTION"
        await stage.world.api.remove(SETS, "shop/web")
        await stage.until(lambda: stage.state("host-0") == "gone", 5)

    play(scene, count=1, days=True)


def test_a_disruption_of_a_bare_pod_runs_out() -> None:
    """Row 10: nobody waits for it."""

    async def scene(stage: Stage) -> None:
        await stage.end(await stage.pod("host-0"), evicted=True)
        await stage.until(lambda: stage.state("host-0") == "DISRUPTION", 5)
        await asyncio.sleep(23 * 3600)
        assert stage.state("host-0") == "DISRUPTION"
        await asyncio.sleep(2 * 3600)
        assert stage.state("host-0") == "unclaimed"

    play(scene, count=1, days=True)


def test_a_set_that_hibernates_elsewhere_frees_its_old_copy() -> None:
    """Row 7: noticed within seconds."""

    async def scene(stage: Stage) -> None:
        owner = set_object(stage.world.api.uid(), "web")
        owner["spec"]["suspend"] = True
        owner["metadata"]["annotations"][STASH] = "host-0"
        owner = await stage.world.api.put(SETS, owner)
        await stage.end(await stage.pod("host-0", owner, keep_snapshot_on_delete="true"))
        await stage.until(lambda: stage.state("host-0") == "SEAT_RELEASE", 5)
        owner["metadata"]["annotations"][STASH] = "host-1"
        await stage.world.api.put(SETS, owner)
        await stage.until(lambda: stage.state("host-0") == "gone", 5)

    play(scene)


@pytest.mark.parametrize("evicted", [True, False])
def test_a_set_of_owners_that_arrives_after_a_promise_does_not_end_it_for_good(evicted: bool) -> None:
    """F32: it was sent when an older pod of the name was the last one; that pod's claim would supersede the promise."""

    async def scene(stage: Stage) -> None:
        first = await stage.pod("host-0")
        await asyncio.sleep(5)
        gate = stage.world.gates["host-0"] = asyncio.Event()
        first["metadata"]["annotations"]["vm.cocoonstack.io/id"] = "another vm"
        await stage.world.api.put(PODS, first)
        await asyncio.sleep(2)
        await stage.end(first)
        keep = "" if evicted else "true"
        await stage.end(await stage.pod("host-0", keep_snapshot_on_delete=keep), evicted=evicted)
        kept = "DISRUPTION" if evicted else "SEAT_RELEASE"
        await stage.until(lambda: stage.state("host-0") == kept, 5)
        del stage.world.gates["host-0"]
        gate.set()
        await asyncio.sleep(60)
        assert stage.state("host-0") == kept
        assert not stage.controller.reconciler.undone()

    play(scene)
