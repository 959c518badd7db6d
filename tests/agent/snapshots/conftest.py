"""Fixtures of the snapshot cache's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.agent.snapshots.caching import CacheHost, opened
from tests.agent.snapshots.serving import Served, serving


@pytest_asyncio.fixture
async def host(tmp_path: Path) -> AsyncIterator[CacheHost]:
    """An open cache on an empty directory store, with clocks that stand still."""
    async with opened(CacheHost(tmp_path)) as host:
        yield host


@pytest_asyncio.fixture
async def served(host: CacheHost) -> AsyncIterator[Served]:
    """The open cache behind a real server."""
    async with serving(host) as made:
        yield made
