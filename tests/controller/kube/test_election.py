"""One leader at a time: under every fault of the API in virtual time, and on the real API server."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import pytest

from controller.kube.access import load_access
from controller.kube.client import KubeClient
from controller.kube.election import Elector
from controller.kube.errors import ApiUnavailable, KubeError
from controller.kube.leadership import ElectionTimes, EpochError, Leadership, NotLeadingError, boot_clock
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support.lease_server import LeaseClient, LeaseServer
from tests.support.virtual_time import run_virtually
from tests.support.waiting import wait_for_async

LEASES = "/apis/coordination.k8s.io/v1/namespaces/cocoon-system/leases"


def elector(client: LeaseClient, times: ElectionTimes | None = None) -> Elector:
    loop = asyncio.get_running_loop()
    return Elector(client, times=times, clock=loop.time)


def seeded(seed: int) -> random.Random:
    """Return the test's own chance; the elector's jitter comes from the module's, which is seeded too."""
    random.seed(seed)
    return random.Random(seed + 1)  # noqa: S311 - a test's chance, no secret


@contextlib.asynccontextmanager
async def running(*electors: Elector) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each.run()) for each in electors]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_first_leads_with_epoch_zero_and_the_next_with_one_more() -> None:
    async def main() -> None:
        server = LeaseServer()
        first, second = elector(LeaseClient(server)), elector(LeaseClient(server))
        async with running(first):
            await asyncio.sleep(3)
            assert first.leadership.require() == 0
            async with running(second):
                await asyncio.sleep(60)
                assert second.leadership.epoch is None
                assert second.holder == first.identity
        assert server.lease is not None
        assert server.lease["spec"]["holderIdentity"] == ""
        async with running(second):
            await asyncio.sleep(2)
            assert second.leadership.require() == 1

    run_virtually(main())


def test_clean_shutdown_is_taken_over_within_two_seconds() -> None:
    async def main() -> None:
        server = LeaseServer()
        first, second = elector(LeaseClient(server)), elector(LeaseClient(server))
        async with running(second):
            async with running(first):
                await asyncio.sleep(5)
                leader, other = (first, second) if first.leadership.epoch is not None else (second, first)
            if leader is first:
                await asyncio.sleep(2)
                assert other.leadership.epoch is not None

    run_virtually(main())


@pytest.mark.parametrize("seed", range(20))
def test_dead_leader_is_followed_within_fifteen_seconds(seed: int) -> None:
    async def main() -> None:
        chance = seeded(seed)
        server = LeaseServer()
        dead = False

        def fault(when: str) -> None:
            if dead:
                raise ApiUnavailable("cut off")

        first, second = elector(LeaseClient(server, fault)), elector(LeaseClient(server))
        async with running(first):
            await asyncio.sleep(chance.uniform(3, 9))
            async with running(second):
                await asyncio.sleep(chance.uniform(0, 9))
                dead = True
                await asyncio.sleep(15)
                assert first.leadership.epoch is None
                assert second.leadership.require() == 1

    run_virtually(main())


def test_leader_that_cannot_renew_stops_before_its_lease_runs_out() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        cut = False

        def fault(when: str) -> float | None:
            return 3600.0 if cut else None

        one = elector(LeaseClient(server, fault))
        heard: list[tuple[float, int | None]] = []
        one.leadership.subscribe(lambda epoch: heard.append((loop.time(), epoch)))
        async with running(one):
            await asyncio.sleep(5)
            cut, since = True, loop.time()
            await asyncio.sleep(7.1)
            with pytest.raises(NotLeadingError):
                one.leadership.require()
            await asyncio.sleep(8)
            assert [epoch for _, epoch in heard] == [0, None]
            assert heard[-1][0] - since < 15

    run_virtually(main())


@pytest.mark.parametrize("seed", range(40))
def test_never_two_leaders_and_epochs_grow(seed: int) -> None:
    """F13, F33: refused, delayed, cut and half-done requests, deleted and restored Leases; at most one acts at once."""

    async def main() -> None:
        chance = seeded(seed)
        loop = asyncio.get_running_loop()
        server = LeaseServer()
        disturbed = True

        def fault(when: str) -> float | None:
            if not disturbed:
                return None
            kind = chance.random()
            if kind < 0.12:
                raise ApiUnavailable("cut")
            if kind < 0.16:
                raise KubeError("odd", reason="Odd")
            return chance.uniform(0, 6) if kind < 0.4 else chance.uniform(0, 0.05)

        candidates = [elector(LeaseClient(server, fault)) for _ in range(3)]
        reigns: list[int] = []
        for each in candidates:
            each.leadership.subscribe(lambda epoch: reigns.append(epoch) if epoch is not None else None)
        async with running(*candidates):
            until = loop.time() + 600
            while loop.time() < until:
                await asyncio.sleep(chance.uniform(0.01, 1))
                acting = [each for each in candidates if each.leadership.epoch is not None]
                assert len(acting) <= 1
            disturbed = False
            await asyncio.sleep(30)
            assert sum(each.leadership.epoch is not None for each in candidates) == 1
        assert reigns == sorted(set(reigns))

    run_virtually(main())


def test_deleted_lease_goes_on_above_the_epoch_before() -> None:
    """F33: the leader notices the deletion itself, and agents never see a lower epoch from it."""

    async def main() -> None:
        server = LeaseServer()
        one = elector(LeaseClient(server))
        async with running(one):
            await asyncio.sleep(3)
            await one.recover(41)
            assert one.leadership.require() == 42
            server.lease = None
            await asyncio.sleep(5)
            assert one.leadership.require() == 43
            assert server.lease is not None
            assert server.lease["spec"]["leaseTransitions"] == 43

    run_virtually(main())


def test_recovery_only_while_holding_the_lease() -> None:
    """F33: a refused leader reads its Lease; held by another, it stops leading."""

    async def main() -> None:
        server = LeaseServer()
        one = elector(LeaseClient(server))
        async with running(one):
            await asyncio.sleep(3)
            await one.recover(7)
            assert one.leadership.require() == 8
            await one.recover(3)
            assert one.leadership.require() == 8
            with pytest.raises(EpochError):
                await one.recover(2**31 - 1)
            assert server.lease is not None
            server.lease["spec"]["holderIdentity"] = "somebody"
            server.put(server.lease)
            with pytest.raises(NotLeadingError):
                await one.recover(20)
            assert one.leadership.epoch is None

    run_virtually(main())


def test_annotations_of_others_survive_renewals() -> None:
    async def main() -> None:
        server = LeaseServer()
        one = elector(LeaseClient(server))
        async with running(one):
            await asyncio.sleep(3)
            assert server.lease is not None
            server.lease["metadata"]["annotations"] = {"a": "b"}
            server.put(server.lease)
            await asyncio.sleep(5)
            assert one.annotations == {"a": "b"}
            assert one.leadership.require() == 0
            await one.annotate("c", "d")
            assert server.lease["metadata"]["annotations"] == {"a": "b", "c": "d"}

    run_virtually(main())


@pytest.mark.parametrize("times", [(1, 2, 3), (10, 2, 7), (10, 10, 1), (10, 7, 0)])
def test_times_that_allow_two_leaders_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="election times"):
        ElectionTimes(*times)


def test_right_ends_by_the_clock_alone() -> None:
    now = 100.0
    leadership = Leadership(lambda: now)
    leadership.grant(5, 107.0)
    assert leadership.require() == 5
    assert leadership.seconds_left() == 7
    now = 107.0
    with pytest.raises(NotLeadingError):
        leadership.require()


async def test_who_waits_for_the_end_hears_of_it_by_the_clock() -> None:
    """A renewal that the API keeps waiting must not prolong what the right allows."""
    leadership = Leadership()
    heard: list[int | None] = []
    leadership.subscribe(heard.append)
    leadership.grant(3, boot_clock() + 0.05)
    waiting = asyncio.create_task(leadership.wait_revoked())
    await asyncio.sleep(0)
    leadership.grant(3, boot_clock() + 0.1)
    await waiting
    assert leadership.epoch is None
    assert heard == [3, None]
    leadership.grant(3, boot_clock() + 60)
    await leadership.wait_granted()
    assert heard == [3, None, 3]


async def test_on_the_real_api(control_plane: ControlPlane, kube: KubeApi, unique_name: Callable[[str], str]) -> None:
    """F33: leading, following, a deleted Lease and a clean shutdown, with the rights of the shipped RBAC."""
    name = unique_name("leader")
    times = ElectionTimes(duration=2.0, renew_deadline=1.5, retry=0.3)
    access = await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))
    async with KubeClient(access) as client:
        first, second = Elector(client, name=name, times=times), Elector(client, name=name, times=times)
        async with running(second):
            async with running(first):
                await wait_for_async(
                    lambda: first.leadership.epoch is not None or second.leadership.epoch is not None, 10
                )
                leader = first if first.leadership.epoch is not None else second
                kube.delete(f"{LEASES}/{name}")
                await wait_for_async(lambda: kube.find(f"{LEASES}/{name}") is not None, 10)
                await wait_for_async(lambda: first.holder == second.holder, 10)
                assert sum(each.leadership.epoch is not None for each in (first, second)) <= 1
                if leader is second:
                    return
            await wait_for_async(lambda: second.leadership.epoch is not None, 10)
            lease = kube.get(f"{LEASES}/{name}")
            assert lease["spec"]["holderIdentity"] == second.identity
            assert lease["spec"]["leaseTransitions"] == second.leadership.require()
    assert kube.get(f"{LEASES}/{name}")["spec"]["holderIdentity"] == ""
