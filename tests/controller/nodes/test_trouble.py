"""The API in trouble: the process lives, and the state is right afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.errors import ApiUnavailable, Conflict, ServerError, TooManyRequests
from controller.nodes.model import TAINT
from controller.nodes.reconciler import NodeReconciler
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import KubeApi
from tests.controller.nodes.building import report, with_class
from tests.controller.nodes.conftest import LEASES, NODES, condition, find, is_ready, running_nodes
from tests.support.waiting import wait_for_async

AGENT = "192.0.2.10:7443"


async def test_an_api_server_that_is_killed_and_comes_back(
    own_control_plane: Callable[..., ControlPlane], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13"""
    monkeypatch.setattr("controller.nodes.lease.RENEW_SECONDS", 1.0)
    plane = own_control_plane(Options(scheduler=False, controller_manager=False))
    async with running_nodes(plane) as running:
        with plane.client() as kube:
            running.reconciler.observe_report(AGENT, report("host-1"))
            await wait_for_async(lambda: is_ready(kube, "host-1"))
        plane.part("kube-apiserver").kill()
        running.reconciler.observe_report(
            AGENT, report("host-1", revision=2, capacity={**report().capacity, "cpu": "16"})
        )
        running.reconciler.observe_report(AGENT + "2", report("host-2"))
        await asyncio.to_thread(plane.start_api_server)
        with plane.client() as kube:
            before = kube.get(f"{LEASES}/host-1")["spec"]["renewTime"]
            await wait_for_async(lambda: find(kube, "host-1")["status"]["capacity"]["cpu"] == "16", 90)
            await wait_for_async(lambda: is_ready(kube, "host-2"), 90)
            await wait_for_async(lambda: kube.get(f"{LEASES}/host-1")["spec"]["renewTime"] > before)
            assert condition(kube, "host-1", "CocoonAgentReachable") == "True"


class FlakyClient(KubeClient):
    """A client whose writes fail in every way there is before each one works."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - passed on
        """Not flaky yet."""
        super().__init__(*args, **kwargs)
        self.troubles: dict[tuple[str, str], list[Exception]] = {}
        self.after_the_fact = False

    async def request(self, method: str, path: str, **rest: Any) -> bytes:  # noqa: ANN401 - passed on
        """Fail first."""
        if method == "GET" or "/events" in path:
            return await super().request(method, path, **rest)
        troubles = self.troubles.setdefault(
            (method, path),
            [
                Conflict("changed"),
                TooManyRequests("slowly", retry_after_seconds=0.2),
                ServerError("500"),
                ServerError("503"),
                ApiUnavailable("closed"),
            ],
        )
        if troubles:
            trouble = troubles.pop(0)
            if isinstance(trouble, ApiUnavailable):
                # The connection broke after the request had been carried out.
                await super().request(method, path, **rest)
            raise trouble
        return await super().request(method, path, **rest)


async def test_writes_that_fail_in_every_way_end_in_the_right_state(
    control_plane: ControlPlane, kube: KubeApi, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: 409, 429 with Retry-After, 500, 503, a connection closed after the fact; for each request."""
    monkeypatch.setattr("controller.nodes.lease._RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr("controller.kube.queue.Backoff.pause_seconds", lambda *_: 0.05)
    async with FlakyClient(await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))) as client:
        part = NodeReconciler(client)
        running = asyncio.create_task(part.run())
        try:
            part.observe_report(AGENT, report(node_name, provider_id="cocoon://a"))
            await wait_for_async(lambda: is_ready(kube, node_name), 60)
            lease = await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}"), 60)
            assert lease is not None
            assert not running.done()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    node = find(kube, node_name)
    assert node["spec"]["providerID"] == "cocoon://a"
    assert node["metadata"]["labels"]["cocoonstack.io/pool"] == "default"
    assert node["status"]["capacity"] == dict(report().capacity)
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]


class DyingClient(KubeClient):
    """A client whose process ends at its `last` write of a Node: before it is sent, or after it was carried out."""

    last = 0
    carried_out = False
    writes = 0
    dead: asyncio.Event

    async def request(self, method: str, path: str, **rest: Any) -> bytes:  # noqa: ANN401 - passed on
        if method != "GET" and path.startswith(NODES):
            self.writes += 1
            if self.writes >= self.last:
                if self.carried_out and self.writes == self.last:
                    await super().request(method, path, **rest)
                self.dead.set()
                await asyncio.Event().wait()
        return await super().request(method, path, **rest)


@pytest.mark.parametrize("carried_out", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("last", [1, 2, 3])
async def test_a_controller_that_dies_while_registering_is_followed_by_one_that_finishes(
    control_plane: ControlPlane, kube: KubeApi, node_name: str, last: int, carried_out: bool
) -> None:
    """Killed before or after each write of a registration; nothing is left that a cleared class could not take off."""
    wanted = with_class(report(node_name, provider_id="cocoon://a"), "zen4")
    async with DyingClient(await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))) as client:
        client.last, client.carried_out, client.dead = last, carried_out, asyncio.Event()
        part = NodeReconciler(client)
        running = asyncio.create_task(part.run())
        part.observe_report(AGENT, wanted)
        await wait_for_async(client.dead.is_set, what="the controller's end")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    async with running_nodes(control_plane) as second:
        second.reconciler.observe_report(AGENT, wanted)
        await wait_for_async(lambda: is_ready(kube, node_name), what="the Node being Ready")
        node = find(kube, node_name)
        assert node["spec"]["providerID"] == "cocoon://a"
        assert TAINT in node["spec"]["taints"]
        assert wanted.labels.items() <= node["metadata"]["labels"].items()
        assert node["status"]["capacity"] == dict(wanted.capacity)
        second.reconciler.observe_report(AGENT, report(node_name, instance_id="instance-2", provider_id="cocoon://a"))
        await wait_for_async(
            lambda: "cocoonstack.io/snapshot-cpu-class" not in find(kube, node_name)["metadata"]["labels"],
            what="the cleared class going",
        )
        await wait_for_async(lambda: kube.find(f"{LEASES}/{node_name}"), what="the lease")
