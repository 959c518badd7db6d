"""Fixtures of the store tests: every kind of store, and file systems that really are small, full or read-only."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agent.snapshots.stores.contract import Store
from tests.agent.snapshots.stores.harness import DirectoryHarness, EngineHarness, StoreHarness
from tests.support.machine import can_mount, small_file_system

# Set it to the path of a real engine's program to hold that to the conformance suite as well.
REAL_ENGINE = os.environ.get("COCOON_NODE_TEST_COCOON_BIN", "")


@pytest.fixture(params=["directory", "cocoon-old", "cocoon-new", "cocoon-real"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
    """Each kind of store in turn."""
    kind = str(request.param)
    if kind == "directory":
        return DirectoryHarness(tmp_path)
    if kind == "cocoon-real":
        if not REAL_ENGINE:
            pytest.skip("needs a real engine: set COCOON_NODE_TEST_COCOON_BIN to its path")
        return EngineHarness(tmp_path, program=REAL_ENGINE)
    return EngineHarness(tmp_path, version=kind.removeprefix("cocoon-"))


@pytest.fixture
def closing() -> Iterator[Callable[[Store], Store]]:
    """A function that has a store closed at the end of the test."""
    with ExitStack() as stack:

        def take(store: Store) -> Store:
            stack.callback(store.close)
            return store

        yield take


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A function that mounts a small file system: `mount(directory, size_bytes=…, kind="tmpfs")`."""
    if not can_mount(tmp_path):
        pytest.skip("needs the right to mount file systems")
    with ExitStack() as stack:

        def take(directory: Path, *, size_bytes: int = 4 << 20, kind: str = "tmpfs") -> Path:
            return stack.enter_context(small_file_system(directory, size_bytes=size_bytes, kind=kind))

        yield take
