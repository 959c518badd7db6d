"""The demonstration: this machine as a Kubernetes Node, by the programs an operator runs.

The agent comes first, so that its own answer is on the screen while the control plane is still being built. Whatever
the demonstration writes lies in a folder of its own, and it uses no cluster it was not given.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from cocoonstack.node.v1 import node_resources_pb2, node_resources_pb2_grpc
from devenv import programs
from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.demo_output import print_node, say_report
from devenv.demo_story import Stage, Story
from devenv.errors import DevenvError
from devenv.kube_api import KubeApi
from devenv.processes import until_interrupt, wait_until
from devenv.progress import say, step
from devenv.toolchain import REPOSITORY

NODE_NAME = "demo"
SECOND_NODE_NAME = "demo-2"

_NODE = f"/api/v1/nodes/{NODE_NAME}"
_LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{NODE_NAME}"
_NODE_READY_SECONDS = 60.0
_NOT_READY = "node.kubernetes.io/not-ready"


class Demo:
    """One run of the demonstration. `output` is table, json or yaml; `kubeconfig` names a cluster to use, or None."""

    def __init__(self, *, output: str, kubeconfig: Path | None) -> None:
        self._output = output
        self._kubeconfig = kubeconfig

    def run(self, *, once: bool) -> None:
        """Show the Node; returns at once with `once`, else at Ctrl-C. Stops what it started and removes its folder.

        Raises DevenvError, one line long, when something does not start.
        """
        with ExitStack() as stack:
            folder = stack.enter_context(_own_folder())
            agent = _start_agent(stack, folder / "agent", NODE_NAME)
            say_report(_ask(agent.address), agent.address)

            kubeconfig, controller_kubeconfig, api, plane = self._cluster(stack, folder)
            agents = [agent]
            stage = None
            if plane is not None and self._output == "table":
                with step("preparing a second agent, a registry and VM runtimes"):
                    stage = Stage(plane, api, folder, stack)
                    agents.append(_start_agent(stack, folder / "agent-2", SECOND_NODE_NAME))
                    for each in agents:
                        stage.add_host(each)
            settings = stage.settings if stage is not None else {}
            if self._kubeconfig is not None:
                # A cluster that was given need not have our namespace.
                settings["COCOON_NODE_CONTROLLER_LEASE_NAMESPACE"] = "default"
            endpoints = [each.endpoint for each in agents]
            controller = ControllerProcess(folder / "controller", controller_kubeconfig, endpoints, settings)
            stack.callback(controller.release)
            with step("registering this machine as a Node"):
                controller.start()
                for each in agents:
                    _wait_until_ready(api, controller, each.node_name)
            print_node(api.get_text(_NODE), self._output)
            self._tell(stage, controller)
            if not once:
                self._stay(kubeconfig, agent, stage)

    def _tell(self, stage: Stage | None, controller: ControllerProcess) -> None:
        if stage is not None:
            try:
                Story(stage).tell()
            except DevenvError as error:
                raise DevenvError(f"{error}; the controller said: {controller.process.log_tail(2)}") from None
        elif self._kubeconfig is not None:
            # It would take definitions of CocoonSets, and somebody else's operator may be at work on them.
            say("suspending and waking VMs is shown on the demonstration's own cluster only: ./run demo")

    def _cluster(self, stack: ExitStack, folder: Path) -> tuple[Path, Path, KubeApi, ControlPlane | None]:
        """Return kubeconfig files for the user and the controller, a client, and the control plane if it is our own.

        All of them end with `stack`.
        """
        if self._kubeconfig is not None:
            say(f"using the cluster of {self._kubeconfig}; the Node {NODE_NAME} is removed from it at the end")
            api = stack.enter_context(KubeApi.from_kubeconfig(self._kubeconfig))
            if api.find(_NODE) is not None:
                raise DevenvError(
                    f"this cluster has a Node {NODE_NAME} already; if an old demo left it, remove it first"
                )
            stack.callback(_remove_node, api)
            return self._kubeconfig, self._kubeconfig, api, None
        programs.ensure([*programs.CONTROL_PLANE, "crane"])
        with step("starting a Kubernetes control plane"):
            plane = stack.enter_context(ControlPlane(folder / "control-plane"))
        return plane.kubeconfig(), plane.kubeconfig("controller"), stack.enter_context(plane.client()), plane

    def _stay(self, kubeconfig: Path, agent: AgentProcess, stage: Stage | None) -> None:
        grpcurl = programs.cache_path("grpcurl")
        with until_interrupt():
            say("")
            say(f"export KUBECONFIG={kubeconfig}")
            say(f"agent: {agent.address} (gRPC), http://{agent.http_address}/metrics")
            say(f"{grpcurl if grpcurl.exists() else 'grpcurl'} -plaintext {agent.address} describe")
            if stage is not None:
                endpoints = ",".join(each.endpoint for each in stage.hosts.values())
                say(f"cocoon-node-controller seats --kubeconfig {kubeconfig} --agents {endpoints}")
            say("running; Ctrl-C ends it and removes its folder")
        say("stopping …")


def _start_agent(stack: ExitStack, directory: Path, node_name: str) -> AgentProcess:
    agent = AgentProcess(directory, node_name)
    stack.callback(agent.release)
    agent.start()
    return agent


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A new folder in the checkout, or where temporary files go when the checkout is somebody else's."""
    parent = REPOSITORY / ".run"
    try:
        parent.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="demo-", dir=parent))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="cocoon-node-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(address: str) -> node_resources_pb2.NodeResourcesReport:
    with grpc.insecure_channel(address) as channel:
        stub = node_resources_pb2_grpc.NodeResourcesStub(channel)
        return stub.GetNodeResources(node_resources_pb2.GetNodeResourcesRequest(), timeout=10).report


def _wait_until_ready(api: KubeApi, controller: ControllerProcess, name: str) -> None:
    def is_ready() -> bool:
        if not controller.process.running:
            raise DevenvError(f"the controller ended: {controller.process.log_tail(3)}")
        node = api.find(f"/api/v1/nodes/{name}")
        if node is None:
            return False
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in node["status"].get("conditions", [])
        )
        # The cluster takes this taint off a moment after the condition; until then no pod is scheduled.
        return ready and not any(taint["key"] == _NOT_READY for taint in node["spec"].get("taints", []))

    try:
        wait_until(is_ready, _NODE_READY_SECONDS, f"the Node {name} becoming ready")
    except DevenvError as error:
        raise DevenvError(f"{error}; the controller said: {controller.process.log_tail(2)}") from None


def _remove_node(api: KubeApi) -> None:
    for path in (_NODE, _LEASE):
        api.discard(path)
