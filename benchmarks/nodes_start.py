"""How fast the agent serves, and what it holds when nobody calls, against the bare server."""

import time
from dataclasses import dataclass

from benchmarks.agent_process import Served, agent, bare_server, report_of
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns

NAME = "start"
_MIB = 1 << 20
# Long enough that what a start leaves for later (a first scan, the first collection of garbage) has been done.
_IDLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Start:
    milliseconds: float
    idle_mib: float


def _observe(server: Served) -> _Start:
    time.sleep(_IDLE_SECONDS)
    return _Start(server.start_seconds * 1000, server.child.rss_bytes() / _MIB)


def run(scale: Scale) -> list[Row]:
    """Return the rows for the time until the first answer and for the idle resident memory."""
    with agent() as warm_up:
        report = report_of(warm_up.first_answer)
    with bare_server(report):
        pass

    def ours() -> _Start:
        with agent() as server:
            return _observe(server)

    def peer() -> _Start:
        with bare_server(report) as server:
            return _observe(server)

    mine, theirs = take_turns(scale.pick(2, 1) * scale.rounds, ours, peer)
    times = [start.milliseconds for start in mine], [start.milliseconds for start in theirs]
    memory = [start.idle_mib for start in mine], [start.idle_mib for start in theirs]
    against = "bare grpc.aio server"
    return [
        at_most(
            NAME,
            "agent start until the first answer",
            against,
            median_ratio(*times),
            2.5,
            TIMES,
            compared("ms", *times),
        ),
        at_most(
            NAME, "agent's idle memory (resident)", against, median_ratio(*memory), 1.3, TIMES, compared("MiB", *memory)
        ),
    ]
