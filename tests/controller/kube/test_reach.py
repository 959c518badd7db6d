"""When watches are in doubt: nothing was heard of one while requests went unanswered, and now one is answered."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from controller.kube.reach import Reach, Watch

WATCH_OPENED, LAST_WORD = 100.0, 110.0
Ends = list[tuple[str, float, float]]  # "failed" or "answered", when the request was sent, when it ended


@contextlib.asynccontextmanager
async def watched(reach: Reach) -> AsyncIterator[tuple[Watch, "asyncio.Task[None]"]]:
    """A watch whose reader waits for ever, and that reader."""
    begun: asyncio.Future[Watch] = asyncio.get_running_loop().create_future()

    async def read() -> None:
        async with reach.watching() as watch:
            begun.set_result(watch)
            await asyncio.Event().wait()

    reader = asyncio.create_task(read())
    try:
        yield await begun, reader
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def turns_of_the_loop() -> None:
    """Let everything happen that waits for nothing."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("ends", "given_up"),
    [
        pytest.param([], False, id="nothing was asked"),
        pytest.param([("answered", 120, 121)], False, id="all is well"),
        pytest.param([("failed", 120, 123)], False, id="still out of reach"),
        pytest.param([("failed", 120, 123), ("answered", 124, 125)], True, id="back"),
        pytest.param([("failed", 105, 115), ("answered", 116, 117)], False, id="the watch was heard meanwhile"),
        pytest.param([("failed", 105, 108), ("failed", 120, 123), ("answered", 124, 125)], True, id="out for long"),
        pytest.param([("failed", 120, 123), ("failed", 105, 135), ("answered", 136, 137)], True, id="out of order"),
        pytest.param([("answered", 121, 122), ("failed", 120, 150), ("answered", 151, 152)], False, id="one was slow"),
        pytest.param([("failed", 120, 123), ("answered", 119, 125)], True, id="sent before"),
    ],
)
async def test_a_watch_is_given_up_when_it_may_be_dead(ends: Ends, given_up: bool) -> None:
    """F13."""
    now = WATCH_OPENED
    reach = Reach(lambda: now)
    async with watched(reach) as (watch, reader):
        watch.heard_at = LAST_WORD
        for end, sent_at, now in ends:  # noqa: B007 - the clock reads it
            if end == "failed":
                reach.failed(sent_at)
            else:
                reach.answered()
        await turns_of_the_loop()
        assert reader.done() is given_up
        if given_up:
            assert isinstance(reader.exception(), TimeoutError)


async def test_a_watch_that_was_opened_since_is_left_alone() -> None:
    now = 0.0
    reach = Reach(lambda: now)
    async with watched(reach) as (_, old):
        now = 5.0
        reach.failed(4.0)
        async with watched(reach) as (_, new):
            now = 6.0
            reach.answered()
            await turns_of_the_loop()
            assert old.done()
            assert not new.done()
