"""When a set counts as gone: only by an uncached answer that names it, after the list has synced."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from common.snapshot_words import Owner
from controller.deletion.model import NO_SET, SetStanding
from controller.deletion.sets import SetWatch
from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.errors import Forbidden
from controller.kube.reflector import ReflectorLimits
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import KubeApi
from tests.support.vm_host import STASH, create_set, install_sets, set_path
from tests.support.waiting import wait_for_async

QUICK = ReflectorLimits(first_backoff_seconds=0.1, max_backoff_seconds=0.5)


@contextlib.asynccontextmanager
async def watching(plane: ControlPlane, user: str = "controller") -> AsyncIterator[SetWatch]:
    access = await load_access(kubeconfig=str(plane.kubeconfig(user)))
    async with KubeClient(access) as client:
        watch = SetWatch(client, limits=QUICK)
        task = asyncio.create_task(watch.run())
        try:
            yield watch
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def owner(set_name: str, set_uid: str) -> Owner:
    return Owner("uid", "default", f"{set_name}-0", f"vk-default-{set_name}-0", True, set_name, set_uid)


async def test_installed_late_and_gone(own_control_plane: Callable[..., ControlPlane]) -> None:
    """F35: not installed, installed later, a set deleted, made again under its name; never gone without proof."""
    plane = own_control_plane(Options(scheduler=False, controller_manager=False))
    with plane.client() as kube:
        async with watching(plane) as watch:
            some = owner("web", "set-1")
            await wait_for_async(lambda: not watch.is_served, 20, what="the missing group being noticed")
            assert watch.cached(some).standing is SetStanding.NOT_SERVED
            assert (await watch.read(some)).standing is SetStanding.NOT_SERVED
            assert watch.has_settled
            install_sets(kube)
            await wait_for_async(lambda: watch.reflector.has_synced and watch.is_served, 30, what="the sets")
            assert watch.cached(some).standing is SetStanding.MISSING
            gone = await watch.read(some)
            assert (gone.standing, gone.confirmed) == (SetStanding.GONE, True)
            await _follow_a_set(kube, watch)


async def _follow_a_set(kube: KubeApi, watch: SetWatch) -> None:
    made = create_set(kube, "web", suspend=True, stash="host-1")
    mine = owner("web", made["metadata"]["uid"])
    await wait_for_async(lambda: watch.cached(mine).standing is SetStanding.EXISTS, 10)
    facts = await watch.read(mine)
    assert (facts.confirmed, facts.suspended, facts.hibernated_on_node) == (True, True, "host-1")
    kube.merge(set_path("web"), {"metadata": {"annotations": {STASH: None}}, "spec": {"suspend": False}})
    await wait_for_async(lambda: not watch.cached(mine).suspended, 10)
    kube.delete(set_path("web"))
    create_set(kube, "web")
    assert (await watch.read(mine)).standing is SetStanding.GONE
    await wait_for_async(lambda: watch.cached(mine).standing is SetStanding.MISSING, 10)
    assert watch.cached(Owner("u", "default", "p", "vk-default-p")) == NO_SET


async def test_forbidden_is_not_gone(own_control_plane: Callable[..., ControlPlane]) -> None:
    """F35: sets exist and we may not read them."""
    plane = own_control_plane(Options(scheduler=False, controller_manager=False))
    with plane.client() as kube:
        install_sets(kube)
        role = kube.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/cocoon-node-controller")
        rules = [rule for rule in role["rules"] if "cocoonsets" not in rule["resources"]]
        kube.merge("/apis/rbac.authorization.k8s.io/v1/clusterroles/cocoon-node-controller", {"rules": rules})
        async with watching(plane) as watch:
            some = owner("web", "set-1")
            await wait_for_async(lambda: "orbidden" in watch.reflector.problem, 20, what="being refused")
            assert watch.cached(some).standing is SetStanding.UNREAD
            assert not watch.has_settled
            with pytest.raises(Forbidden):
                await watch.read(some)
