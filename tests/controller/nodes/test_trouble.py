"""The API in trouble: the process lives, and the state is right afterwards."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.errors import ApiUnavailable, Conflict, ServerError, TooManyRequests
from controller.nodes.reconciler import NodeReconciler
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import KubeApi
from tests.controller.nodes.building import report
from tests.controller.nodes.conftest import LEASES, condition, find, is_ready, running_nodes
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
