"""Leases on the real API server: who is renewed, when, and what may not delay it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from common.tasks import end_tasks
from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.nodes.lease import LeaseKeeper
from controller.nodes.model import CONTROLLER
from controller.nodes.reconciler import NodeReconciler, read_clocks
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.controller.nodes.building import report
from tests.controller.nodes.conftest import LEASES, NODES, find, is_ready, remove
from tests.support.waiting import wait_for_async

AGENT = "192.0.2.10:7443"


@dataclass
class Watcher:
    """Says who is heard from, and keeps what it is told."""

    heard: set[str] = field(default_factory=set)
    foreign: dict[str, str] = field(default_factory=dict)

    def is_heard_from(self, name: str) -> bool:
        return name in self.heard

    def observe_foreign_lease(self, name: str, holder: str) -> None:
        self.foreign[name] = holder


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))) as client:
        yield client


@pytest.fixture
async def keeping(
    client: KubeClient, kube: KubeApi, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[LeaseKeeper, Watcher]]:
    """A keeper with a rhythm of 0.3 s that has renewed the Lease of `node_name`, whose agent is heard from."""
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 0.3)
    watcher = Watcher({node_name})
    keeper = LeaseKeeper(client, watcher, read_clocks)
    loop = asyncio.create_task(keeper.run())
    node = kube.create(NODES, {"metadata": {"name": node_name}})
    keeper.keep(node_name, node["metadata"]["uid"])
    await wait_for_async(lambda: renewed_at(kube, node_name), what="the first renewal")
    yield keeper, watcher
    assert not loop.done(), "the loop never ends by itself"
    await end_tasks([loop])


def lease(kube: KubeApi, name: str) -> dict[str, Any]:
    return kube.find(f"{LEASES}/{name}") or {}


def renewed_at(kube: KubeApi, name: str) -> str:
    return str(lease(kube, name).get("spec", {}).get("renewTime", ""))


async def renewed_since(kube: KubeApi, name: str, before: str) -> None:
    await wait_for_async(lambda: renewed_at(kube, name) > before, what=f"the lease {name} being renewed")


def is_ready_and_kept(kube: KubeApi, name: str) -> bool:
    return is_ready(kube, name) and renewed_at(kube, name) != ""


def has_cpu(kube: KubeApi, name: str, cpu: str) -> bool:
    return bool(find(kube, name)["status"]["capacity"]["cpu"] == cpu)


def put_lease(kube: KubeApi, name: str, holder: str, *, age_seconds: float = 0.0) -> str:
    at = (datetime.now(UTC) - timedelta(seconds=age_seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": at}
    kube.create(LEASES, {"metadata": {"name": name, "annotations": {"note": "theirs"}}, "spec": spec})
    return at


@pytest.mark.usefixtures("keeping")
async def test_a_kept_lease_is_made_and_renewed(kube: KubeApi, node_name: str) -> None:
    await renewed_since(kube, node_name, renewed_at(kube, node_name))
    await renewed_since(kube, node_name, renewed_at(kube, node_name))


async def test_a_silent_agents_lease_runs_out_and_a_returning_ones_is_renewed_at_once(
    keeping: tuple[LeaseKeeper, Watcher], kube: KubeApi, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, watcher = keeping
    watcher.heard.clear()
    await wait_for_async(lambda: keeper._kept[node_name].idle)
    last = renewed_at(kube, node_name)
    # From here on the loop alone would not look again for an hour.
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 3600.0)
    await wait_for_async(lambda: keeper._kept[node_name].due > read_clocks().monotonic + 60)
    assert renewed_at(kube, node_name) == last
    watcher.heard.add(node_name)
    keeper.hurry(node_name)
    await renewed_since(kube, node_name, last)


@pytest.mark.usefixtures("keeping")
async def test_what_others_put_on_a_lease_stays(kube: KubeApi, node_name: str) -> None:
    kube.merge(f"{LEASES}/{node_name}", {"metadata": {"annotations": {"note": "theirs"}}})
    await renewed_since(kube, node_name, renewed_at(kube, node_name))
    await renewed_since(kube, node_name, renewed_at(kube, node_name))
    assert lease(kube, node_name)["metadata"]["annotations"] == {"note": "theirs"}


@pytest.mark.usefixtures("keeping")
async def test_a_deleted_lease_is_made_again(kube: KubeApi, node_name: str) -> None:
    """F33: the Lease is deleted and created again."""
    before = lease(kube, node_name)["metadata"]["uid"]
    kube.delete(f"{LEASES}/{node_name}")
    await wait_for_async(lambda: lease(kube, node_name).get("metadata", {}).get("uid", before) != before)


async def test_a_renewal_by_somebody_else_is_noticed_and_left_to_them(
    keeping: tuple[LeaseKeeper, Watcher], kube: KubeApi, node_name: str
) -> None:
    keeper, watcher = keeping
    kube.merge(f"{LEASES}/{node_name}", {"spec": {"holderIdentity": "vk"}})
    await wait_for_async(lambda: watcher.foreign == {node_name: "vk"})
    seen = keeper.lease(node_name)
    assert seen is not None
    assert seen.is_foreign
    version = lease(kube, node_name)["metadata"]["resourceVersion"]
    keeper.keep(node_name, "another-uid")
    await wait_for_async(lambda: keeper._kept.get(node_name) is None, what="the lease being let go again")
    assert lease(kube, node_name)["metadata"]["resourceVersion"] == version


async def test_a_take_over_renews_ours_that_have_not_run_out_and_nothing_else(
    client: KubeClient, kube: KubeApi, unique_name: Callable[[str], str]
) -> None:
    names = {kind: unique_name(f"lease-{kind}") for kind in ("ours", "run-out", "foreign")}
    try:
        before = {
            names["ours"]: put_lease(kube, names["ours"], CONTROLLER, age_seconds=39),
            names["run-out"]: put_lease(kube, names["run-out"], CONTROLLER, age_seconds=41),
            names["foreign"]: put_lease(kube, names["foreign"], "vk"),
        }
        keeper = LeaseKeeper(client, Watcher(), read_clocks)
        await keeper.take_over(renew=False)
        assert {name: renewed_at(kube, name) for name in before} == before
        await keeper.take_over()
        assert {name for name, at in before.items() if renewed_at(kube, name) != at} == {names["ours"]}
        assert lease(kube, names["ours"])["metadata"]["annotations"] == {"note": "theirs"}
        foreign = keeper.lease(names["foreign"])
        assert foreign is not None
        assert foreign.holder == "vk"
    finally:
        for name in names.values():
            remove(kube, name)


class StuckClient(KubeClient):
    """A client whose applies never come back."""

    stuck = False
    waiting = 0

    async def apply(self, *args: Any, **kwargs: Any) -> bytes:  # noqa: ANN401 - passed on
        """Wait for ever once `stuck`."""
        if self.stuck:
            self.waiting += 1
            await asyncio.Event().wait()
        return await super().apply(*args, **kwargs)


async def test_status_writes_that_hang_delay_no_lease(
    control_plane: ControlPlane,
    kube: KubeApi,
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F14"""
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 0.3)
    names = [unique_name("busy") for _ in range(20)]
    async with StuckClient(await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))) as client:
        part = NodeReconciler(client)
        running = asyncio.create_task(part.run())
        try:
            for name in names:
                part.observe_report(AGENT, report(name))
            for name in names:
                await wait_for_async(partial(is_ready_and_kept, kube, name))
            client.stuck = True
            for name in names:
                part.observe_report(AGENT, report(name, revision=2, capacity={**report().capacity, "cpu": "16"}))
            await wait_for_async(lambda: client.waiting >= 16, what="all workers being stuck")
            for name in names:
                await renewed_since(kube, name, renewed_at(kube, name))
            assert all(find(kube, name)["status"]["capacity"]["cpu"] == "32" for name in names)
        finally:
            await end_tasks([running])
            for name in names:
                remove(kube, name)


async def test_a_capacity_that_changes_all_the_time_keeps_leases_and_ready(
    control_plane: ControlPlane, kube: KubeApi, node_name: str, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F14"""
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 0.3)
    part = NodeReconciler(client)
    running = asyncio.create_task(part.run())
    try:
        part.observe_report(AGENT, report(node_name))
        await wait_for_async(partial(is_ready_and_kept, kube, node_name))
        renewals = set()
        for revision in range(2, 30):
            capacity = {**report().capacity, "cpu": str(revision)}
            part.observe_report(AGENT, report(node_name, revision=revision, capacity=capacity))
            await wait_for_async(partial(has_cpu, kube, node_name, str(revision)))
            renewals.add(renewed_at(kube, node_name))
            assert is_ready(kube, node_name)
        assert len(renewals) > 1
    finally:
        await end_tasks([running])
