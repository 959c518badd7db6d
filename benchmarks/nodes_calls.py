"""`GetNodeResources` under load: the agent with everything on, against a bare server that builds an equal message."""

import statistics

from benchmarks import go_programs
from benchmarks.agent_process import Served, agent, bare_server, report_of
from benchmarks.harness import TIMES, Row, Scale, at_least, at_most, compared, median_ratio, take_turns
from benchmarks.processes import output_of

NAME = "calls"
_CALLERS = 10


def run(scale: Scale) -> list[Row]:
    """Return the rows for calls per second and for the 99th percentile of the latency."""
    client = go_programs.build("client")
    seconds = scale.pick(5, 2)

    def load(server: Served) -> dict[str, object]:
        options = [f"-callers={_CALLERS}", f"-seconds={seconds}", "-warm-up=0.5"]
        before = server.child.cpu_seconds()
        result = output_of([str(client), "load", f"-target={server.address}", *options], seconds + 30)
        # The warm-up's calls are not counted and its CPU is: a tenth, the same on both sides.
        result["cpu_us"] = (server.child.cpu_seconds() - before) * 1e6 / float(str(result["calls"]))
        return result

    with agent() as ours, bare_server(report_of(ours.first_answer)) as peer:
        mine, theirs = take_turns(scale.rounds, lambda: load(ours), lambda: load(peer))
    rates = [_figures(mine, "calls_per_second"), _figures(theirs, "calls_per_second")]
    tails = [_figures(mine, "p99_us"), _figures(theirs, "p99_us")]
    cpu = compared("µs", _figures(mine, "cpu_us"), _figures(theirs, "cpu_us"))
    size = statistics.median(_figures(mine, "reply_bytes"))
    against = "bare grpc.aio server building an equal message"
    return [
        at_least(
            NAME,
            f"GetNodeResources per second, {_CALLERS} callers",
            against,
            median_ratio(*rates),
            1.0,
            TIMES,
            f"{compared('calls/s', *rates)}, reply of {size:.0f} bytes; CPU a call {cpu}",
        ),
        at_most(
            NAME,
            f"GetNodeResources p99, {_CALLERS} callers",
            against,
            median_ratio(*tails),
            1.2,
            TIMES,
            compared("µs", *tails),
        ),
    ]


def _figures(results: list[dict[str, object]], key: str) -> list[float]:
    return [float(str(result[key])) for result in results]
