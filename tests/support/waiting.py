"""Waiting for a condition instead of for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

_POLL_SECONDS = 0.05


def wait_for(
    condition: Callable[[], T],
    deadline_seconds: float = 30.0,
    *,
    what: str = "",
    ignoring: tuple[type[Exception], ...] = (),
) -> T:
    """Call `condition` until its result is truthy and return that; fail with the last result at the deadline.

    Exceptions of the kinds in `ignoring` count as not yet; any other ends the wait.
    """
    deadline = time.monotonic() + deadline_seconds
    while True:
        outcome: object
        try:
            result = condition()
            if result:
                return result
            outcome = result
        except ignoring as error:
            outcome = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what or 'condition'}: not within {deadline_seconds:g} s; last: {outcome!r}")
        time.sleep(_POLL_SECONDS)


@overload
async def wait_for_async(
    condition: Callable[[], Awaitable[T]],
    deadline_seconds: float = ...,
    *,
    what: str = ...,
    ignoring: tuple[type[Exception], ...] = ...,
) -> T: ...


@overload
async def wait_for_async(
    condition: Callable[[], T],
    deadline_seconds: float = ...,
    *,
    what: str = ...,
    ignoring: tuple[type[Exception], ...] = ...,
) -> T: ...


async def wait_for_async(
    condition: Callable[[], object],
    deadline_seconds: float = 30.0,
    *,
    what: str = "",
    ignoring: tuple[type[Exception], ...] = (),
) -> object:
    """The same for tests on an event loop; `condition` may be a coroutine function."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        outcome: object
        try:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
            if result:
                return result
            outcome = result
        except ignoring as error:
            outcome = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what or 'condition'}: not within {deadline_seconds:g} s; last: {outcome!r}")
        await asyncio.sleep(_POLL_SECONDS)
