"""`./run demo` as a stranger starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from devenv.toolchain import REPOSITORY
from tests.support.waiting import wait_for

_DEMO = [str(REPOSITORY / "run"), "demo"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("output", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_once_prints_exactly_the_node_and_ends(output: str, parse: object) -> None:
    answer = subprocess.run(
        [*_DEMO, "--once", "-o", output], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert answer.returncode == 0, answer.stderr
    assert callable(parse)
    node = parse(answer.stdout)

    assert (node["kind"], node["metadata"]["name"]) == ("Node", "demo")
    assert node["status"]["capacity"]["cpu"] == str(os.sysconf("SC_NPROCESSORS_CONF"))
    assert "the agent at" in answer.stderr


@pytest.mark.timeout(300)
def test_once_tells_how_a_suspended_vm_wakes_warm_and_cold() -> None:
    answer = subprocess.run([*_DEMO, "--once"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("Node demo")
    assert "suspend" not in answer.stdout
    told = answer.stderr[answer.stderr.index("a suspended VM") :]
    facts = [
        "demo-2 is a second agent on this same machine",
        "web runs on",
        "web is suspended: its pod is gone",
        "is in the registry, and RETAINED on",
        "restored warm, from the copy kept there",
        "web is suspended: its pod is gone",
        "other takes the seat that web left",
        "restored cold, pulled from the registry",
        "is stale now and gone",
    ]
    at = 0
    for fact in facts:
        at = told.find(fact, at)
        assert at >= 0, f"{fact} is not told, or not in this order:\n{told}"


@pytest.mark.timeout(300)
def test_a_given_cluster_is_used_named_and_left_as_it_was(control_plane: ControlPlane, kube: KubeApi) -> None:
    kubeconfig = control_plane.kubeconfig()
    answer = subprocess.run([*_DEMO, "--once", "--kubeconfig", kubeconfig], capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr
    assert str(kubeconfig) in answer.stderr
    assert "cocoonstack.io/pool=default" in answer.stdout
    assert "on the demonstration's own cluster only" in answer.stderr
    assert kube.find("/api/v1/nodes/demo") is None


@pytest.mark.timeout(300)
def test_ctrl_c_ends_everything_and_leaves_nothing(control_plane: ControlPlane, kube: KubeApi, tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    with log.open("w") as output:
        demo = subprocess.Popen(
            [*_DEMO, "--kubeconfig", control_plane.kubeconfig()],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        wait_for(lambda: "Ctrl-C ends it" in log.read_text() or demo.poll() is not None, 120, what="the demo running")
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 2, log.read_text()
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 0, log.read_text()
    finally:
        # Not by SIGKILL: what it started would stay.
        demo.terminate()
        demo.wait()
    assert not [child.pid for child in children if child.is_running()]
    assert kube.find("/api/v1/nodes/demo") is None


@pytest.mark.timeout(300)
def test_a_node_of_the_same_name_is_not_taken_over(control_plane: ControlPlane, kube: KubeApi) -> None:
    kube.create("/api/v1/nodes", {"metadata": {"name": "demo"}})
    try:
        answer = subprocess.run(
            [*_DEMO, "--once", "--kubeconfig", control_plane.kubeconfig()], capture_output=True, text=True, check=False
        )
        assert answer.returncode == 1
        assert answer.stderr.splitlines()[-1].startswith("run: this cluster has a Node demo already")
        assert kube.find("/api/v1/nodes/demo") is not None
    finally:
        kube.delete("/api/v1/nodes/demo")
