"""A real API server, simulated agents and the real controller between them: what the fleet rows measure on."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import BenchmarkError, Child, free_port, python
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import Json
from devenv.processes import wait_until

_START_SECONDS = 300.0

# Who wrote what, and when, without the objects: the log must not be the load.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class FleetCluster:
    """The running parts but the controller, and where the agents are."""

    plane: ControlPlane
    fleet: Child
    ports: Mapping[str, int]
    directory: Path

    @contextmanager
    def controller(self, lifecycle: str = "auto") -> Iterator[Child]:
        """Run the controller, and hand it over when it watches every agent and every Node is Ready."""
        agents = self.directory / "agents"
        agents.write_text("".join(f"{name}=127.0.0.1:{port}\n" for name, port in self.ports.items()))
        with Child(_controller_command(self.plane, agents, lifecycle)) as controller:
            self._wait_for(controller)
            yield controller

    def _wait_for(self, controller: Child) -> None:
        count = len(self.ports)

        def all_watched() -> bool:
            controller.check_running()
            self.fleet.tell("streams")
            return int(str(self.fleet.read_json(10)["streams"])) >= count

        wait_until(all_watched, _START_SECONDS, f"{count} agents being watched")
        with self.plane.client() as admin:

            def all_ready() -> bool:
                controller.check_running()
                return sum(_is_ready(node) for node in admin.items("/api/v1/nodes")) >= count

            wait_until(all_ready, _START_SECONDS, f"{count} Nodes becoming Ready")

    def targets_file(self) -> Path:
        """Return a file with one `host:port` a line, for the Go client."""
        path = self.directory / "targets"
        path.write_text("".join(f"127.0.0.1:{port}\n" for port in self.ports.values()))
        return path


@contextmanager
def fleet_cluster(count: int) -> Iterator[FleetCluster]:
    """Run an API server and `count` agents; everything ends with the block."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made:
        directory = Path(made)
        policy = directory / "audit-policy.json"
        policy.write_text(json.dumps(_AUDIT_POLICY))
        options = Options(
            scheduler=False,
            controller_manager=False,
            extra_flags={"kube-apiserver": [f"--audit-policy-file={policy}"]},
        )
        with (
            ControlPlane(directory / "control-plane", options) as plane,
            Child(python("-m", "benchmarks.fleet", str(count))) as fleet,
        ):
            yield FleetCluster(plane, fleet, _ports(fleet), directory)


def administrator(plane: ControlPlane) -> tuple[Path, str]:
    """Return the CA file and the token with which everything may be read, for clients that stream."""
    kubeconfig = plane.kubeconfig("admin")
    token: str = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
    return kubeconfig.with_name("ca.crt"), token


def _ports(fleet: Child) -> dict[str, int]:
    agents = fleet.read_json(120)["agents"]
    if not isinstance(agents, dict):
        raise BenchmarkError("the simulated fleet did not say where its agents are")
    return agents


def _controller_command(plane: ControlPlane, agents: Path, lifecycle: str) -> list[str]:
    settings = {
        "--kubeconfig": str(plane.kubeconfig("controller")),
        "--agents-file": str(agents),
        "--lifecycle": lifecycle,
        "--http-listen": f"127.0.0.1:{free_port()}",
    }
    words = [word for setting in settings.items() for word in setting]
    return python("-c", "from controller.cli import main; main()", "run", *words)


def _is_ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
