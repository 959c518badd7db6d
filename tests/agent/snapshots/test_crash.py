"""A real agent is killed at every named point and at random moments, and loses nothing that it acknowledged."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devenv.cocoon_programs import AgentProcess
from tests.agent.snapshots import crashing_agent
from tests.agent.snapshots.caching import CRASH_POINTS
from tests.agent.snapshots.crash_load import Load
from tests.support.waiting import wait_for

BATCHES = 3
KILLS_IN_A_BATCH = 7
LONG_KILLS_IN_A_BATCH = 100


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """A load on an agent that can be told where to crash."""
    agent = AgentProcess(tmp_path, "node-1")
    agent.process.command = [sys.executable, crashing_agent.__file__, "serve"]
    load = Load(agent)
    load.prepare()
    yield load
    agent.release()


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_crash_at_a_named_point_loses_nothing(load: Load, point: str) -> None:
    """Rule 6, under calls of a controller, a person, an importer and a reader at once."""
    load.agent.settings["CRASH_AT"] = f"{point}#3"
    load.agent.start()
    load.run(seed=len(point), rounds=200)
    wait_for(
        lambda: not load.agent.process.running, 20, what=f"the end at {point}, which has to be reached three times"
    )
    load.agent.settings.clear()
    load.agent.start()
    load.check()
    load.run(seed=1, rounds=10)
    load.check()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_crashes_at_random_moments_lose_nothing(load: Load, long_profile: bool, batch: int) -> None:
    """Rule 6: whatever the agent was doing, for all callers at once."""
    choice = random.Random(batch)  # noqa: S311  # when the next crash comes
    kills = LONG_KILLS_IN_A_BATCH if long_profile else KILLS_IN_A_BATCH
    for number in range(kills):
        load.agent.start()
        load.check()
        killing = threading.Timer(choice.uniform(0.01, 0.6), load.agent.process.kill)
        killing.start()
        load.run(seed=1000 * batch + 10 * number, rounds=10_000)
        killing.join()
    load.agent.start()
    load.check()
    print(f"{kills} kills, {load.calls} rounds of calls answered, {load.revision} syncs; all that was kept is kept")
