"""The controller with a clock in it: `python -m benchmarks.deletion_controller KUBECONFIG AGENTS_FILE`.

Why this exists: how late its event loop wakes up, and when it has an agent's answer, can be seen from inside only.
Everything else is as `cocoon-node-controller run` does it. Lines of standard input: `begin` starts a measurement, `end`
prints it as JSON: `lag_p99_ms`, `lag_max_ms`, and `answers`, the monotonic time of the last answer by pod UID.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from benchmarks.harness import percentile
from common.logging import set_up_logging
from controller import app
from controller.agents.cache_client import CacheClient
from controller.config import load_settings

_LAG_PERIOD_SECONDS = 0.01


class Meter:
    """Notes lag and answers from `begin` on."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.answers: dict[str, float] = {}

    def begin(self) -> None:
        """Forget what was."""
        self.lags, self.answers = [], {}

    def end(self) -> dict[str, object]:
        """Return what was since `begin`."""
        lags = self.lags or [0.0]
        return {
            "lag_p99_ms": percentile(lags, 99) * 1000,
            "lag_max_ms": max(lags) * 1000,
            "answers": self.answers,
        }

    def obey(self) -> None:
        """Read a line from standard input and answer it."""
        for line in os.read(sys.stdin.fileno(), 65536).decode().split():
            if line == "begin":
                self.begin()
                print("{}", flush=True)
            else:
                print(json.dumps(self.end()), flush=True)

    async def run(self) -> None:
        """Measure how late the loop wakes up, until cancelled."""
        while True:
            due = time.perf_counter() + _LAG_PERIOD_SECONDS
            await asyncio.sleep(_LAG_PERIOD_SECONDS)
            self.lags.append(time.perf_counter() - due)

    def time_answers(self, name: str) -> None:
        """Have the client's method of this name note when it has the answer."""
        method = getattr(CacheClient, name)

        async def timed(client: CacheClient, node: str, owner: Any, *rest: Any, **named: Any) -> Any:  # noqa: ANN401 - passed on
            answer = await method(client, node, owner, *rest, **named)
            self.answers[owner.pod_uid] = time.monotonic()
            return answer

        setattr(CacheClient, name, timed)


async def _run(kubeconfig: str, agents_file: str) -> None:
    meter = Meter()
    meter.time_answers("retain")
    meter.time_answers("purge")
    options = {"kubeconfig": kubeconfig, "agents_file": agents_file, "http_listen": "127.0.0.1:0"}
    settings = load_settings(options, {})
    set_up_logging(settings.log_format, settings.log_level)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), meter.obey)
    measuring = asyncio.create_task(meter.run())
    try:
        await app.run(settings)
    finally:
        measuring.cancel()


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], sys.argv[2]))
