"""Tasks that belong together, ended and awaited together.

Why this exists: a task that is cancelled and not awaited may still be at work when its resources are closed.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def end_tasks(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel the tasks and wait until they have ended; their errors are dropped."""
    to_end = set(tasks)
    for task in to_end:
        task.cancel()
    await asyncio.gather(*to_end, return_exceptions=True)


async def until_first_ends(*parts: Coroutine[Any, Any, object]) -> None:
    """Run all parts until one ends, then end the others; an error of the one that ended is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await end_tasks(tasks)
