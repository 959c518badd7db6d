"""The demonstration's story of a suspended VM: its seat is freed, its snapshot kept, and it wakes, warm and cold.

Every line tells what was just read back from the API, the agents or the runtime. The VMs are a stand-in's, and the
second host is a second agent on this machine; both are said first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from cocoonstack.node.v1 import snapshot_cache_pb2, snapshot_cache_pb2_grpc
from common.quantity import format_cpu, parse_quantity
from devenv.cocoon_programs import AgentProcess
from devenv.control_plane import ControlPlane
from devenv.errors import DevenvError
from devenv.kube_api import ApiError, Json, KubeApi
from devenv.processes import wait_until
from devenv.progress import say
from devenv.snapshot_registry import RegistryProcess, SnapshotRegistry
from devenv.toolchain import REPOSITORY
from devenv.vm_runtime import VmRuntime

_CRDS = REPOSITORY / "devenv" / "cocoonset_crds.yaml"
_SETS = "/apis/cocoonset.cocoonstack.io/v1/namespaces/default/cocoonsets"
_STEP_SECONDS = 60.0
# More than half a host, so that a second one of them fills it.
_SHARE_PERCENT = 60
_VM_SECONDS = 10.0


@dataclass
class Stage:
    """What the story needs beside the first agent: a registry, CocoonSets in the API, hosts with runtimes.

    `settings` are the controller's. Everything ends with `stack`.
    """

    plane: ControlPlane
    api: KubeApi
    folder: Path
    stack: ExitStack
    hosts: dict[str, AgentProcess] = field(default_factory=dict)
    runtimes: dict[str, VmRuntime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.process = self.stack.enter_context(RegistryProcess(self.folder / "registry"))
        self.registry = SnapshotRegistry(f"{self.process.url}/vms")
        self.stack.callback(self.registry.close)
        self.api.apply_file(_CRDS)
        wait_until(self._serves_sets, _STEP_SECONDS, "the API serving CocoonSets")

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables for the controller."""
        return {
            "COCOON_NODE_CONTROLLER_SEAT_RELEASE": "true",
            "COCOON_NODE_CONTROLLER_REGISTRY": self.registry.base,
        }

    def add_host(self, agent: AgentProcess) -> None:
        """Give a running agent's host a runtime."""
        store = agent.root / "snapshots"
        store.mkdir(exist_ok=True)
        client = self.stack.enter_context(self.plane.client())
        runtime = VmRuntime(client, agent.node_name, store, self.registry, agent.address)
        self.hosts[agent.node_name], self.runtimes[agent.node_name] = agent, runtime
        self.stack.enter_context(runtime)

    def _serves_sets(self) -> bool:
        try:
            return self.api.find(_SETS) is not None
        except ApiError:
            return False


class Story:
    """The sets `web` and `other` on two hosts, told line by line on standard error."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._api = stage.api

    def tell(self) -> None:
        """Tell it from the first boot to the cold wake. Raises DevenvError when a step does not come about."""
        second = list(self._stage.hosts)[-1]
        allocatable = self._api.get(f"/api/v1/nodes/{second}")["status"]["allocatable"]["cpu"]
        cpu = format_cpu(parse_quantity(allocatable).millicores() * _SHARE_PERCENT // 100)
        say("")
        say("a suspended VM: its seat is freed, its snapshot kept, and it wakes")
        say(f" VMs by a stand-in runtime, no hypervisor; {second} is a second agent on this same machine")
        self._create("web", cpu)
        node = self._wait_live("web")
        say(f" web runs on {node} and takes {cpu} of its {allocatable} CPU")
        self._suspend("web", node)
        self._wake("web")
        self._suspend("web", node)
        self._create("other", cpu, node=node)
        say(f" other takes the seat that web left: {self._wait_live('other')} is full")
        self._wake("web")
        with _telling("the copy that web left behind is removed") as line:
            wait_until(lambda: _kept(self._stage.hosts[node], _vm("web")) == "", _STEP_SECONDS, "the copy going")
            line(f" the copy on {node} is stale now and gone")

    def _create(self, name: str, cpu: str, *, node: str = "") -> None:
        spec = {
            "hibernatePolicy": "release",
            "agent": {"image": "demo", "resources": {"requests": {"cpu": cpu}}},
        } | ({"nodeName": node} if node else {})
        kind = {"apiVersion": "cocoonset.cocoonstack.io/v1", "kind": "CocoonSet"}
        self._api.create(_SETS, kind | {"metadata": {"name": name}, "spec": spec})

    def _suspend(self, name: str, node: str) -> None:
        with _telling(f"{name} is suspended") as line:
            self._api.merge(f"{_SETS}/{name}", {"spec": {"suspend": True}})
            wait_until(lambda: self._phase(name) == "Suspended", _STEP_SECONDS, f"{name} being suspended")
            wait_until(lambda: self._pod(name) is None, _STEP_SECONDS, f"the pod of {name} being gone")
            line(f" {name} is suspended: its pod is gone, the seat on {node} free")
            agent, vm = self._stage.hosts[node], _vm(name)
            # The promise stands at once; the claim of the pod that is gone ends a moment later.
            wait_until(lambda: _is_only_kept(_kept(agent, vm)), _STEP_SECONDS, "the snapshot being kept")
            pushed = self._stage.registry.find(vm)
            say(f" its snapshot {pushed.snapshot_id[:8] if pushed else '?'} is in the registry, and {_kept(agent, vm)}")

    def _wake(self, name: str) -> None:
        restores = sum(len(runtime.restores) for runtime in self._stage.runtimes.values())
        with _telling(f"{name} wakes") as line:
            self._api.merge(f"{_SETS}/{name}", {"spec": {"suspend": False}})
            node = self._wait_live(name)
            done = [each for runtime in self._stage.runtimes.values() for each in runtime.restores]
            restore = self._stage.runtimes[node].restores[-1]
            if len(done) <= restores or restore.vm != _vm(name):
                raise DevenvError(f"{name} is live on {node} without having been restored")
            how = "warm, from the copy kept there" if restore.warm else "cold, pulled from the registry"
            line(f" {name} wakes on {node}: {restore.snapshot_id[:8]} restored {how}")

    def _wait_live(self, name: str) -> str:
        """Wait until the set runs and return the node of its pod."""
        wait_until(lambda: self._phase(name) == "Running", _STEP_SECONDS, f"{name} running")
        pod = self._pod(name)
        if pod is None:
            raise DevenvError(f"{name} runs, but has no pod")
        node: str = pod["spec"]["nodeName"]
        return node

    def _phase(self, name: str) -> str:
        status: Json = self._api.get(f"{_SETS}/{name}").get("status", {})
        return str(status.get("phase", ""))

    def _pod(self, name: str) -> Json | None:
        return self._api.find(f"/api/v1/namespaces/default/pods/{name}-0")


def _vm(name: str) -> str:
    return f"vk-default-{name}-0"


def _kept(agent: AgentProcess, vm: str) -> str:
    """Return what the agent says of a VM's copy, such as `RETAINED on demo for SEAT_RELEASE`; empty without a copy."""
    with grpc.insecure_channel(agent.address) as channel:
        stub = snapshot_cache_pb2_grpc.SnapshotCacheStub(channel)
        found = stub.ListSnapshots(snapshot_cache_pb2.ListSnapshotsRequest(vm_name=vm), timeout=_VM_SECONDS).snapshots
    if not found:
        return ""
    state = snapshot_cache_pb2.SnapshotState.Name(found[0].state).removeprefix("SNAPSHOT_STATE_")
    reason = snapshot_cache_pb2.RetainReason.Name(found[0].retention.reason).removeprefix("RETAIN_REASON_")
    return f"{state} on {agent.node_name}" + (f" for {reason}" if found[0].HasField("retention") else "")


def _is_only_kept(told: str) -> bool:
    return told.startswith("RETAINED ") and told.endswith("SEAT_RELEASE")


@contextmanager
def _telling(what: str) -> Iterator[Callable[[str], None]]:
    """Give a function that says a line with the time since the block began; name `what` in an error."""
    started = time.monotonic()
    try:
        yield lambda line: say(f"{line} ({time.monotonic() - started:.1f} s)")
    except ApiError as error:
        raise DevenvError(f"{what}: {error}") from None
