"""Fixtures of the snapshot cache's tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.agent.snapshots.caching import CacheHost, opened


@pytest_asyncio.fixture
async def host(tmp_path: Path) -> AsyncIterator[CacheHost]:
    """An open cache on an empty directory store, with clocks that stand still."""
    async with opened(CacheHost(tmp_path)) as host:
        yield host
