"""What mutual TLS adds to a call on an open connection: the real agent with certificates, against itself without.

One caller, one call after the other, because callers that wait for each other would measure the queue.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import go_programs
from benchmarks.agent_process import NODE_NAME, Served, agent, tls_agent
from benchmarks.certificates import CONTROLLER, Authority
from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import output_of

NAME = "tls-calls"


def run(scale: Scale) -> list[Row]:
    """Return the row for the median time of a call."""
    client = str(go_programs.build("client"))
    seconds = scale.pick(4, 1)

    def load(server: Served, *more: str) -> dict[str, object]:
        options = ["-callers=1", f"-seconds={seconds}", "-warm-up=0.5", *more]
        before = server.child.cpu_seconds()
        result = output_of([client, "load", f"-target={server.address}", *options], seconds + 30)
        result["cpu_us"] = (server.child.cpu_seconds() - before) * 1e6 / float(str(result["calls"]))
        return result

    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        authority = Authority()
        ours = authority.issue_into(Path(made) / "client", CONTROLLER)
        theirs = authority.issue_into(Path(made) / "agent", NODE_NAME)
        with tls_agent(theirs, ours) as secured, agent() as plain:
            tls, bare = take_turns(
                scale.pick(2, 1) * scale.rounds,
                lambda: load(secured, f"-tls={ours}", f"-name={NODE_NAME}"),
                lambda: load(plain),
            )
    times = _figures(tls, "p50_us"), _figures(bare, "p50_us")
    details = [
        compared("µs", *times),
        f"p99 {compared('µs', _figures(tls, 'p99_us'), _figures(bare, 'p99_us'))}",
        f"the agent's CPU a call {compared('µs', _figures(tls, 'cpu_us'), _figures(bare, 'cpu_us'))}",
    ]
    what = "GetNodeResources over mutual TLS, connection open, median"
    return [at_most(NAME, what, "plain text", median_ratio(*times), 1.3, TIMES, "; ".join(details))]


def _figures(results: list[dict[str, object]], key: str) -> list[float]:
    return [float(str(result[key])) for result in results]
