"""How soon it is known that there are no CocoonSets: a start must not wait for the pace of later looks."""

import asyncio

import pytest

from controller.deletion.sets import SetWatch
from controller.kube import served
from controller.kube.reflector import ReflectorLimits
from tests.support.scripted_api import ScriptedApi, failure
from tests.support.waiting import wait_for_async


@pytest.mark.parametrize("fails_before", [0, 2])
async def test_an_api_without_sets_is_known_at_the_first_looks(
    monkeypatch: pytest.MonkeyPatch, fails_before: int
) -> None:
    """F35"""
    monkeypatch.setattr(served, "_PROBE_SECONDS", 3600.0)
    steps = [failure(500)] * fails_before + [failure(404, "NotFound")] * 50
    async with ScriptedApi(*steps) as api, api.client() as client:
        watch = SetWatch(client, limits=ReflectorLimits(first_backoff_seconds=0.01))
        assert watch.is_served
        assert not watch.has_settled
        running = asyncio.create_task(watch.run())
        try:
            await wait_for_async(lambda: watch.has_settled, what="it being known that sets are not served")
            assert not watch.is_served
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
