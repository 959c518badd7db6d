"""Lets work go on at its own pace, however slowly its results are read.

Why this exists: one collection runs at a time, and a caller who asks for one and does not read its answer would hold
the turn for ever, while the disk fills up because no other collection may begin.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

_T = TypeVar("_T")


async def read_ahead(source: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """Yield what `source` yields, while it runs on in a task of its own; closed early, it closes `source`.

    What is not read yet is kept, so `source` must be finite. Its error is raised after what came before it.
    """
    results: asyncio.Queue[tuple[_T, ...]] = asyncio.Queue()

    async def run() -> None:
        try:
            async with contextlib.aclosing(source):
                async for result in source:
                    results.put_nowait((result,))
        finally:
            results.put_nowait(())

    task = asyncio.create_task(run())
    try:
        while found := await results.get():
            yield found[0]
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
