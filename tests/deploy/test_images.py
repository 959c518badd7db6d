"""The images: what is in them, how large they are, and that both programs run from them as they are deployed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from common.version import VERSION
from devenv import images
from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.image_root import command_in
from devenv.images import Image
from devenv.kube_api import KubeApi
from devenv.toolchain import REPOSITORY
from tests.support import cluster

_DOCKERFILES = [REPOSITORY / f"Dockerfile.{name}" for name in images.NAMES]
_LIMITS_BYTES = {"agent": 150_000_000, "controller": 200_000_000}
_BUILDS_OR_INSTALLS = re.compile(
    r"bin/(?:pip.*|wheel|hatchling|cc|c\+\+|gcc.*|g\+\+.*|cpp|make|ld|as|apt.*|dpkg.*|perl.*|git|curl|wget)$"
)
# /var/run, as pods have it, is a link to it.
_TOKEN_FOLDER = "/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture(scope="module", params=images.NAMES)
def image(request: pytest.FixtureRequest) -> Image:
    """Each image in turn."""
    return _ensure(request.param)


@cache
def _ensure(name: str) -> Image:
    if missing := images.missing_tools():
        # CI installs them; a developer's machine is left as it is.
        assert not os.environ.get("CI"), missing
        pytest.skip("; ".join(missing))
    return images.ensure(name)


@pytest.mark.parametrize("dockerfile", _DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    answer = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, "")


@pytest.mark.timeout(600)
def test_size_and_contents(image: Image) -> None:
    inside = [path.relative_to(image.root) for path in image.root.rglob("*")]
    names = set(image.packages())
    ours, theirs = ("agent", "controller") if image.name == "agent" else ("controller", "agent")

    assert image.size_bytes <= _LIMITS_BYTES[image.name]
    assert [str(path) for path in inside if _BUILDS_OR_INSTALLS.search(str(path))] == []
    assert {path.name for path in inside} & {"ensurepip", "setuptools", "pip"} == set()
    assert {ours, "common", "cocoonstack", "grpc"} <= names
    assert {theirs, "devenv", "tests", "pip", "hatchling"} & names == set()
    assert ("kubernetes" in names) == (image.name == "controller")


def test_the_image_says_what_it_is_and_how_it_is_watched(image: Image) -> None:
    labels, program = image.config["Labels"], f"cocoon-node-{image.name}"
    assert labels["org.opencontainers.image.title"] == program
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.description"]
    assert image.config["Entrypoint"] == [program]
    assert image.config["User"] == ("0:0" if image.name == "agent" else "65532:65532")
    assert image.config["Healthcheck"]["Test"][:4] == ["CMD", "python", "-m", "common.healthcheck"]


def test_nothing_in_the_root_can_be_written(image: Image) -> None:
    answer = _run(image, "python", "-c", "open('/opt/cocoon-node/x', 'w')")
    assert answer.returncode != 0
    assert re.search("Read-only file system|Permission denied", answer.stderr)


def test_the_program_starts_and_says_its_version(image: Image) -> None:
    answer = _run(image, *image.config["Entrypoint"], "--version")
    assert (answer.returncode, answer.stdout.strip(), answer.stderr) == (0, VERSION, "")


@pytest.fixture
def contained_agent(tmp_path: Path, unique_name: Callable[[str], str]) -> Iterator[AgentProcess]:
    """The agent from its image, started; it may write to its own folder and nowhere else."""
    image = _ensure("agent")
    agent = AgentProcess(tmp_path / "agent", unique_name("node"))
    agent.process.command = _contained(image, agent.environment(), {agent.directory: str(agent.directory)})
    agent.start()
    yield agent
    agent.release()


@pytest.mark.timeout(600)
def test_both_programs_from_their_images_bring_a_node_up(
    contained_agent: AgentProcess, control_plane: ControlPlane, kube: KubeApi, tmp_path: Path
) -> None:
    """With a read-only root, without capabilities, the controller with its service account's token as in a pod."""
    image = _ensure("controller")
    account = tmp_path / "account"
    account.mkdir()
    credentials = control_plane.kubeconfig().parent
    (account / "ca.crt").write_bytes((credentials / "ca.crt").read_bytes())
    (account / "token").write_text(_controller_token(credentials / "tokens.csv"))
    host, _, port = control_plane.url.removeprefix("https://").partition(":")
    controller = ControllerProcess(
        tmp_path / "controller",
        Path("/unused"),
        [contained_agent.endpoint],
        {
            "COCOON_NODE_CONTROLLER_KUBECONFIG": "",
            "COCOON_NODE_CONTROLLER_IN_CLUSTER": "true",
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
        },
    )
    folder = controller.ready_file.parent
    folder.chmod(0o777)  # the image's user is nobody's here
    mounts = {folder: str(folder), account: _TOKEN_FOLDER}
    controller.process.command = _contained(image, controller.settings, mounts)
    try:
        controller.start()
        node = cluster.wait_ready(kube, contained_agent.node_name)

        assert node["status"]["capacity"]["cpu"] == str(os.cpu_count())
        assert _health(image, controller.settings) == (0, "")
        assert _health(_ensure("agent"), contained_agent.environment()) == (0, "")
        contained_agent.stop()
        status, complaint = _health(_ensure("agent"), contained_agent.environment())
        assert status == 1
        assert "Connection refused" in complaint
    finally:
        controller.release()
        for path in (cluster.NODES, cluster.LEASES):
            kube.discard(f"{path}/{contained_agent.node_name}")


def _contained(image: Image, settings: dict[str, str], mounts: dict[Path, str]) -> list[str]:
    return command_in(
        image, image.config["Entrypoint"] + image.config["Cmd"], mounts=mounts, environment=_ours(settings)
    )


def _health(image: Image, settings: dict[str, str]) -> tuple[int, str]:
    """Exit status and complaint of the image's own health check, run beside the program."""
    answer = _run(image, *image.config["Healthcheck"]["Test"][1:], environment=_ours(settings))
    return answer.returncode, answer.stderr


def _ours(settings: dict[str, str]) -> dict[str, str]:
    prefixes = ("COCOON_", "VK_", "KUBERNETES_SERVICE_")
    return {key: value for key, value in settings.items() if key.startswith(prefixes)}


def _run(
    image: Image,
    *command: str,
    environment: dict[str, str] | None = None,
    mounts: dict[Path, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    whole = command_in(image, command, environment=environment, mounts=mounts)
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)


def _controller_token(token_file: Path) -> str:
    lines = [line.split(",") for line in token_file.read_text().splitlines()]
    return next(token for token, _user, key, *_ in lines if key == "controller")
