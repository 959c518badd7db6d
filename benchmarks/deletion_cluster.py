"""The parts that the rows about deletions are measured on: a stand-in API server, simulated agents, the controller.

Each is a process of its own, all of them on this machine; only the controller's CPU and memory are measured.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import BenchmarkError, Child, python

_START_SECONDS = 180.0
_SETTLE_SECONDS = 240.0
_LAST_ANSWERS_SECONDS = 2.0
_POLL_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StandIn:
    """A running stand-in API server and its address."""

    child: Child
    url: str

    def ask(self, line: str, seconds: float = 10.0) -> dict[str, object]:
        """Send a line of `benchmarks.deletion_load` and return its answer."""
        self.child.tell(line)
        return self.child.read_json(seconds)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything running; `agents` are the processes of the simulated ones, `ports` where each agent is."""

    api: StandIn
    agents: Sequence[Child]
    ports: dict[str, int]
    controller: Child

    def measure(self, load: str, seconds: float) -> tuple[dict[str, object], dict[str, object]]:
        """Put a load on the API server; return its answer, and the controller's lag and answers meanwhile."""
        self.controller.tell("begin")
        self.controller.read_json(10)
        answer = self.api.ask(load, seconds)
        time.sleep(_LAST_ANSWERS_SECONDS)
        self.controller.check_running()
        self.controller.tell("end")
        return answer, self.controller.read_json(30)

    def told(self) -> tuple[int, int]:
        """Return how many agents were told their owners, and how often in all."""
        told = syncs = 0
        for child in self.agents:
            child.tell("told")
            answer = child.read_json(30)
            told, syncs = told + int(str(answer["told"])), syncs + int(str(answer["syncs"]))
        return told, syncs

    def wait_quiet(self) -> None:
        """Return when what a load left to be done is done: no Event is sent any more, and no agent told."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        _, before = self.told()
        self.api.ask("count", 30)
        while True:
            time.sleep(_POLL_SECONDS)
            writes, (told, syncs) = self.api.ask("count", 30)["writes"], self.told()
            assert isinstance(writes, dict)
            # Each agent is told again every few minutes, whatever happens.
            if "POST events" not in writes and syncs - before <= told / 100:
                return
            before = syncs
            self.controller.check_running()
            if time.monotonic() > deadline:
                raise BenchmarkError(f"not quiet after {_SETTLE_SECONDS:g} s: {writes}, {syncs} syncs")


@contextmanager
def stand_in_api(pods: int, nodes: int, kept: int = 0, *, flagged: bool = False) -> Iterator[StandIn]:
    """Run a stand-in API server with so many pods on so many nodes."""
    arguments = (str(pods), str(nodes), str(kept), str(int(flagged)))
    with Child(python("-m", "benchmarks.deletion_api", *arguments)) as child:
        yield StandIn(child, f"http://127.0.0.1:{child.read_json(_START_SECONDS)['port']}")


def write_kubeconfig(path: Path, url: str) -> Path:
    """Write a kubeconfig for a server that asks for no credentials."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stand-in", "cluster": {"server": url}}],
        "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "nobody"}}],
        "users": [{"name": "nobody", "user": {}}],
        "current-context": "stand-in",
    }
    path.write_text(json.dumps(config))
    return path


@contextmanager
def deletion_cluster(pods: int, nodes: int, kept: int, *, processes: int, flagged: bool = False) -> Iterator[Cluster]:
    """Run everything until every Node is registered and every agent knows its owners."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made, ExitStack() as stack:
        directory = Path(made)
        share = nodes // processes
        agents = [
            stack.enter_context(Child(python("-m", "benchmarks.deletion_agents", str(share), str(first))))
            for first in range(0, nodes, share)
        ]
        api = stack.enter_context(stand_in_api(pods, nodes, kept, flagged=flagged))
        ports: dict[str, int] = {}
        for child in agents:
            found = child.read_json(_START_SECONDS)["agents"]
            if not isinstance(found, dict):
                raise BenchmarkError("the simulated agents did not say where they are")
            ports |= found
        listed = directory / "agents"
        listed.write_text("".join(f"{name}=127.0.0.1:{port}\n" for name, port in ports.items()))
        kubeconfig = write_kubeconfig(directory / "kubeconfig", api.url)
        command = python("-m", "benchmarks.deletion_controller", str(kubeconfig), str(listed))
        controller = stack.enter_context(Child(command))
        cluster = Cluster(api, agents, ports, controller)
        _wait_settled(cluster, nodes)
        yield cluster


def _wait_settled(cluster: Cluster, nodes: int) -> None:
    """Return when every agent was told its owners, every Node has its Lease, and writes are renewals only."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        told, _ = cluster.told()
        count = cluster.api.ask("count", 30)
        writes = count["writes"]
        assert isinstance(writes, dict)
        if told >= nodes and count["leases"] == nodes and set(writes) <= {"PUT leases", "PATCH leases"}:
            return
        cluster.controller.check_running()
        if time.monotonic() > deadline:
            raise BenchmarkError(f"after {_SETTLE_SECONDS:g} s {told} of {nodes} agents are told, and written: {count}")
        time.sleep(_POLL_SECONDS)


def answer_times(made: dict[str, object], seen: dict[str, object]) -> list[float]:
    """Return the milliseconds from each deletion to its answer, infinite for one that was not answered in time."""
    deleted, answered = made["deletions"], seen["answers"]
    assert isinstance(deleted, dict)
    assert isinstance(answered, dict)
    return [(answered.get(uid, float("inf")) - at) * 1000 for uid, at in deleted.items()]
