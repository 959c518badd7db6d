"""What mutual TLS adds to a fleet: the time to connect a thousand agents, and the memory of their connections.

Two fleets of simulated agents stand all the time, one with a certificate for each agent, the other with plain text; in
each turn the controller's connections (`benchmarks.tls_streams`) dial all of one, at the pace of the controller.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import TIMES, Row, Scale, at_most, compared, median_ratio, take_turns
from benchmarks.processes import BenchmarkError, Child, python

NAME = "tls-fleet"
_MIB = 1 << 20
_START_SECONDS = 120.0
_CONNECT_SECONDS = 120.0
# A first heartbeat has come by then, and what connecting needed for a moment is free again.
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class _Connected:
    seconds: float
    cpu_seconds: float
    mib: float


def run(scale: Scale) -> list[Row]:
    """Return the rows for the time to connect all and for the resident memory afterwards."""
    count = scale.pick(1000, 100)
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        client = Path(made) / "client"
        plain, secured = Path(made) / "plain", Path(made) / "secured"
        fleet = python("-m", "benchmarks.fleet", str(count))
        with Child(fleet) as bare, Child([*fleet, str(client)]) as tls:
            _name_agents(bare, plain)
            _name_agents(tls, secured)
            ours, peers = take_turns(scale.rounds, lambda: _connect(secured, str(client)), lambda: _connect(plain))
    times = [each.seconds for each in ours], [each.seconds for each in peers]
    cpu = [each.cpu_seconds for each in ours], [each.cpu_seconds for each in peers]
    memory = [each.mib for each in ours], [each.mib for each in peers]
    what = f"{count} agents over mutual TLS: "
    shown = f"{compared('s', *times)}; CPU of the client {compared('s', *cpu)}"
    return [
        at_most(NAME, f"{what}connect all", "plain text", median_ratio(*times), 4, TIMES, shown),
        at_most(
            NAME, f"{what}memory, resident", "plain text", median_ratio(*memory), 2, TIMES, compared("MiB", *memory)
        ),
    ]


def _name_agents(fleet: Child, file: Path) -> None:
    """Write the agents' names and addresses as the controller's file of agents has them."""
    agents = fleet.read_json(_START_SECONDS)["agents"]
    if not isinstance(agents, dict):
        raise BenchmarkError("the simulated fleet did not say where its agents are")
    file.write_text("".join(f"{name}=127.0.0.1:{port}\n" for name, port in agents.items()), encoding="utf-8")


def _connect(agents: Path, *tls_directory: str) -> _Connected:
    with Child(python("-m", "benchmarks.tls_streams", str(agents), *tls_directory)) as streams:
        took = streams.read_json(_CONNECT_SECONDS)
        time.sleep(_SETTLE_SECONDS)
        streams.check_running()
        return _Connected(float(str(took["seconds"])), float(str(took["cpu_seconds"])), streams.rss_bytes() / _MIB)
