"""Fixtures every room may use: the real control plane, real programs, the machine's own resources.

One control plane per test worker, started when the first test asks for it. Tests share it, so they name their Nodes and
namespaces themselves (`unique_name`) and remove what they made.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import KubeApi
from tests.support import cluster, machine
from tests.support.audit import AuditLog

# Deadlines of single examples are measurements of a busy machine; the suite asserts none.
settings.register_profile("ci", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --long, the profile for soaks, thousands of examples and hundreds of kills."""
    parser.addoption("--long", action="store_true", help="run the long profile: tests marked long, many examples")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the hypothesis profile that goes with --long; have programs under test hear Ctrl-C."""
    # A shell starts what runs in its background with SIGINT ignored, and every program that we start inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("long" if config.getoption("--long") else "ci")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked long, with the reason, unless --long is given."""
    if config.getoption("--long"):
        return
    skip = pytest.mark.skip(reason="long profile only (./run test --long)")
    for item in items:
        if "long" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def long_profile(pytestconfig: pytest.Config) -> bool:
    """Whether --long was given, for tests whose counts differ between the profiles."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session")
def short_directory() -> Iterator[Path]:
    """A folder with a short path, for Unix sockets, whose names must stay under 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="cn-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane, shared by the tests of one worker.

    Its node lifecycle controller is a little quicker than a cluster's: it checks every second and gives up after 40 s,
    our lease duration. Less would mark Nodes whose controller a test restarts on a busy machine.
    """
    options = Options(node_monitor_period_seconds=1, node_monitor_grace_period_seconds=40)
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), options) as plane:
        yield plane


@pytest.fixture
def own_control_plane(tmp_path: Path) -> Iterator[Callable[..., ControlPlane]]:
    """A function that starts a control plane of the test's own: for killing its parts, or other options."""
    planes: list[ControlPlane] = []

    def start(options: Options | None = None) -> ControlPlane:
        plane = ControlPlane(tmp_path / f"control-plane-{len(planes)}", options)
        planes.append(plane)
        plane.start()
        return plane

    yield start
    for plane in planes:
        plane.stop()


@pytest.fixture
def kube(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """A client with an administrator's rights on the shared control plane."""
    with control_plane.client() as client:
        yield client


@pytest.fixture
def other_writer(control_plane: ControlPlane) -> Iterator[KubeApi]:
    """A client of a second administrator, `somebody-else` in the audit log."""
    with control_plane.client("other") as client:
        yield client


@pytest.fixture
def audit(control_plane: ControlPlane) -> AuditLog:
    """The audit log of the shared control plane."""
    return AuditLog(control_plane.audit_log)


_serial = itertools.count(1)


@pytest.fixture
def unique_name(worker_id: str) -> Callable[[str], str]:
    """A function that makes a name no other test uses: `unique_name("node")` → `node-gw0-7`."""
    return lambda prefix: f"{prefix}-{worker_id}-{next(_serial)}"


@pytest.fixture
def agent_process(tmp_path: Path, unique_name: Callable[[str], str]) -> Iterator[Callable[..., AgentProcess]]:
    """A function that starts a real agent: `agent_process(settings={…}, node_name=…)`; stopped by pid afterwards."""
    agents: list[AgentProcess] = []

    def start(settings: Mapping[str, str] | None = None, node_name: str | None = None) -> AgentProcess:
        agent = AgentProcess(tmp_path / f"agent-{len(agents)}", node_name or unique_name("node"), settings)
        agents.append(agent)
        agent.start()
        return agent

    yield start
    for agent in agents:
        agent.release()


@pytest.fixture
def controller_process(
    tmp_path: Path, control_plane: ControlPlane, kube: KubeApi
) -> Iterator[Callable[..., ControllerProcess]]:
    """A function that starts a real controller on the shared control plane, with the rights of the shipped RBAC.

    `controller_process(agent, …, settings={…})`. Afterwards it is stopped, and the Nodes and Leases of these agents are
    removed from the cluster.
    """
    controllers: list[ControllerProcess] = []
    names: list[str] = []

    def start(*agents: AgentProcess, settings: Mapping[str, str] | None = None) -> ControllerProcess:
        names.extend(agent.node_name for agent in agents)
        endpoints = [agent.endpoint for agent in agents]
        directory = tmp_path / f"controller-{len(controllers)}"
        controller = ControllerProcess(directory, control_plane.kubeconfig("controller"), endpoints, settings)
        controllers.append(controller)
        controller.start()
        return controller

    yield start
    for controller in controllers:
        controller.release()
    for name in names:
        for path in (f"{cluster.NODES}/{name}", f"{cluster.LEASES}/{name}"):
            kube.discard(path)


@pytest.fixture
def host_memory() -> Iterator[None]:
    """Hold the machine-wide lock while the test reads the host's own memory figures."""
    with machine.host_memory_lock():
        yield


@pytest.fixture
def hugepages(host_memory: None) -> Iterator[machine.Hugepages]:
    """The host's pool of 2 MiB pages, put back afterwards; root only."""
    if os.geteuid() != 0 or not os.access(machine.HUGEPAGES_2MI, os.W_OK):
        pytest.skip("changing huge pages needs root and a kernel with 2 MiB pages")
    pool = machine.Hugepages()
    yield pool
    pool.restore()


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """A function that mounts a small file system: `small_file_system(size_bytes=…, kind="tmpfs"|"ext4")` → its path."""
    if not machine.can_mount(tmp_path):
        pytest.skip("mounting file systems needs root and CAP_SYS_ADMIN")
    mounts: list[AbstractContextManager[Path]] = []

    def mount(*, size_bytes: int, kind: str = "tmpfs") -> Path:
        mounted = machine.small_file_system(tmp_path / f"mount-{len(mounts)}", size_bytes=size_bytes, kind=kind)
        mounts.append(mounted)
        return mounted.__enter__()

    yield mount
    for mounted in reversed(mounts):
        mounted.__exit__(None, None, None)
