"""What seats are measured on: a real control plane, registry, agent and controller, and a stand-in runtime.

One VM host with room for every VM. Times come from the audit log of the API server, one clock for all.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.processes import Child, python
from benchmarks.seats_load import Call, ask, send
from controller.seats.pods import main_pod
from devenv.audit_log import audit_events, audit_mark
from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane, Options
from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import ApiError, Json, KubeApi
from devenv.processes import wait_until
from devenv.snapshot_registry import PushedSnapshot, RegistryProcess, SnapshotRegistry
from devenv.toolchain import REPOSITORY

NODE = "bench"
SETS = "/apis/cocoonset.cocoonstack.io/v1/namespaces/default/cocoonsets"
PODS = "/api/v1/namespaces/default/pods"
STASH = "cocoonset.cocoonstack.io/hibernated-on-node"
KEEP = "vm.cocoonstack.io/keep-snapshot-on-delete"
_GENERATION = "cocoonset.cocoonstack.io/generation"
_SECONDS = 180.0
_LOOK_SECONDS = 1.5
# The Node's Lease runs out while bare clients are measured, which need no controller.
_PATIENT_SECONDS = 3600
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Write:
    """One answered write: who, what, and when it came and was answered, in Unix seconds."""

    user: str
    verb: str
    resource: str
    name: str
    came_at: float
    done_at: float


@dataclass(frozen=True, slots=True)
class SeatCluster:
    """The running parts but the controller."""

    plane: ControlPlane
    kube: KubeApi
    agent: AgentProcess
    registry: SnapshotRegistry
    runtime: Child
    audit: Path
    directory: Path

    @contextmanager
    def controller(self) -> Iterator[ControllerProcess]:
        """Run the controller with seat release; it leads before anything here waits for it."""
        settings = {
            "COCOON_NODE_CONTROLLER_SEAT_RELEASE": "true",
            "COCOON_NODE_CONTROLLER_REGISTRY": self.registry.base,
        }
        process = ControllerProcess(
            self.directory / "controller", self.plane.kubeconfig("controller"), [self.agent.endpoint], settings
        )
        try:
            process.start()
            yield process
        finally:
            process.release()

    def tell_runtime(self, line: str) -> None:
        """Send the runtime a line of `benchmarks.seats_runtime`."""
        self.runtime.tell(line)
        self.runtime.read_json(10)

    def mark(self) -> int:
        """Return the present end of the audit log."""
        return audit_mark(self.audit)

    def writes(self, since: int) -> list[Write]:
        """Return the writes answered after the mark."""
        return [_write(event) for event in audit_events(self.audit, since)]

    def create_sets(self, names: Sequence[str], *, suspend: bool, stash: bool = False) -> list[Json]:
        """Create sets with policy release; return them in order."""
        made = [_set_body(name, suspend=suspend, stash=stash) for name in names]
        answers: list[Json] = ask(self.plane, [Call("POST", SETS, body) for body in made])
        return answers

    def push(self, names: Sequence[str]) -> None:
        """Have the registry hold a snapshot of each set's VM."""
        for name in names:
            self.registry.push(vm_name(name), PushedSnapshot(f"id-{name}", "life"))

    def clear(self) -> None:
        """Remove every set and pod."""
        self.kube.delete(SETS)
        self.kube.delete(PODS, gracePeriodSeconds=0)
        wait_until(
            lambda: not self.kube.items(SETS) and not self.kube.items(PODS), _SECONDS, "the namespace being empty"
        )

    def sets_in_phase(self, phase: str) -> int:
        """Return how many sets have this phase."""
        return sum(each.get("status", {}).get("phase") == phase for each in self.kube.items(SETS))

    def wait_phase(self, count: int, phase: str) -> None:
        """Wait until so many sets have this phase, looking rarely: a list of all of them is a load of its own."""
        wait_rarely(lambda: self.sets_in_phase(phase) >= count, _SECONDS, f"{count} sets being {phase}")


def vm_name(set_name: str) -> str:
    """Return the VM of a set's main pod."""
    return f"vk-default-{set_name}-0"


def hibernated_pod(cocoon_set: Json) -> Json:
    """Return the main pod of a suspended set as it is when its VM has hibernated."""
    pod: Json = dict(main_pod(cocoon_set, restores=False))
    generation = str(cocoon_set["metadata"]["generation"])
    pod["metadata"]["annotations"] |= {
        "vm.cocoonstack.io/hibernate": "true",
        "vm.cocoonstack.io/lifecycle-state": "hibernated",
        "vm.cocoonstack.io/lifecycle-observed-generation": generation,
        _GENERATION: generation,
    }
    pod["spec"]["nodeName"] = NODE
    return pod


def status_body(phase: str, reason: str, message: str) -> Mapping[str, Any]:
    """Return a merge patch of a set's status as the controller writes it."""
    condition = {
        "type": "SeatReleased",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    return {"status": {"phase": phase, "observedGeneration": 1, "agents": [], "conditions": [condition]}}


def by_controller(writes: Sequence[Write]) -> list[Write]:
    """Return the controller's writes of sets and pods."""
    return [w for w in writes if w.user == CONTROLLER_USER and w.resource in ("pods", "cocoonsets")]


@contextmanager
def seat_cluster(pods: int) -> Iterator[SeatCluster]:
    """Run everything but the controller; one Node with room for so many pods is made by the first controller."""
    with TemporaryDirectory(prefix="cocoon-benchmark-") as made, ExitStack() as stack:
        directory = Path(made)
        policy, audit = directory / "audit-policy.json", directory / "audit.log"
        policy.write_text(json.dumps(_POLICY))
        flags = [f"--audit-policy-file={policy}", f"--audit-log-path={audit}"]
        options = Options(node_monitor_grace_period_seconds=_PATIENT_SECONDS, extra_flags={"kube-apiserver": flags})
        plane = stack.enter_context(ControlPlane(directory / "control-plane", options))
        kube = stack.enter_context(plane.client())
        kube.apply_file(REPOSITORY / "devenv" / "cocoonset_crds.yaml")
        wait_until(lambda: _serves(kube), _SECONDS, "CocoonSets being served")
        process = stack.enter_context(RegistryProcess(directory / "registry"))
        registry = SnapshotRegistry(f"{process.url}/vms")
        stack.callback(registry.close)
        agent = AgentProcess(directory / "agent", NODE, {"VK_NODE_PODS": str(pods)})
        stack.callback(agent.release)
        agent.start()
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        other = str(plane.kubeconfig("other"))
        arguments = (other, NODE, str(store), registry.base, agent.address)
        runtime = stack.enter_context(Child(python("-m", "benchmarks.seats_runtime", *arguments)))
        runtime.read_json(30)
        yield SeatCluster(plane, kube, agent, registry, runtime, audit, directory)


def wait_rarely(condition: Callable[[], bool], deadline_seconds: float, what: str) -> None:
    """Wait for a condition that costs the API server something to look at; when it came true is told by the log."""

    def look() -> bool:
        time.sleep(_LOOK_SECONDS)
        return condition()

    wait_until(look, deadline_seconds, what)


def wait_node(cluster: SeatCluster) -> None:
    """Wait until pods can be scheduled to the Node."""

    def is_ready() -> bool:
        node = cluster.kube.find(f"/api/v1/nodes/{NODE}")
        taints = [taint["key"] for taint in (node or {}).get("spec", {}).get("taints", [])]
        return node is not None and "node.kubernetes.io/not-ready" not in taints

    wait_until(is_ready, _SECONDS, "the Node taking pods")


def create_pods(cluster: SeatCluster, pods: Sequence[Json]) -> float:
    """Create pods at once; return the seconds it took."""
    return send(cluster.plane, [[Call("POST", PODS, pod)] for pod in pods])


def _set_body(name: str, *, suspend: bool, stash: bool) -> Json:
    return {
        "apiVersion": "cocoonset.cocoonstack.io/v1",
        "kind": "CocoonSet",
        "metadata": {"name": name, "annotations": {STASH: NODE} if stash else {}},
        "spec": {"suspend": suspend, "hibernatePolicy": "release", "agent": {"image": "vm"}},
    }


def _serves(kube: KubeApi) -> bool:
    try:
        return kube.find(SETS) is not None
    except ApiError:
        return False


def _write(entry: Json) -> Write:
    ref = entry.get("objectRef", {})
    resource = "/".join(filter(None, (ref.get("resource", ""), ref.get("subresource", ""))))
    return Write(
        entry["user"]["username"],
        entry["verb"],
        # The status is a write of the set; a binding is one of its own kind.
        "cocoonsets" if resource == "cocoonsets/status" else resource,
        ref.get("name", ""),
        datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp(),
        datetime.fromisoformat(entry["stageTimestamp"]).timestamp(),
    )
