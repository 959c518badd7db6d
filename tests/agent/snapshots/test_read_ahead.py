"""Work whose results are read slowly, not to the end, or not at all."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from agent.snapshots.read_ahead import read_ahead


class Work:
    """Three steps and perhaps an error; remembers how far it got."""

    def __init__(self, *, fails: bool = False) -> None:
        self.done: list[int] = []
        self.closed = asyncio.Event()
        self._fails = fails

    async def steps(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                self.done.append(number)
                yield number
                await asyncio.sleep(0)
            if self._fails:
                raise ValueError("the last step failed")
        finally:
            self.closed.set()


async def test_work_goes_on_while_its_first_result_is_looked_at() -> None:
    work = Work()
    results = read_ahead(work.steps())
    assert await anext(results) == 0
    await asyncio.wait_for(work.closed.wait(), 10)
    assert [result async for result in results] == [1, 2]


async def test_an_error_comes_after_the_results_before_it() -> None:
    results = read_ahead(Work(fails=True).steps())
    assert [await anext(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the last step failed"):
        await anext(results)


async def test_who_leaves_ends_the_work() -> None:
    work = Work()
    results = read_ahead(work.steps())
    await anext(results)
    await results.aclose()
    assert work.closed.is_set()
