"""The control plane the other tests stand on: it serves, records writes, schedules, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from devenv.control_plane import RBAC_FILES, ControlPlane, Options
from devenv.kube_api import KubeApi
from devenv.ports import PortLease
from devenv.toolchain import REPOSITORY
from tests.support.audit import AuditLog
from tests.support.waiting import wait_for


def test_serves_the_pinned_version(kube: KubeApi) -> None:
    assert kube.get("/version")["gitVersion"] == "v1.36.3"


def test_an_answered_write_is_in_the_audit_log(
    kube: KubeApi, other_writer: KubeApi, audit: AuditLog, unique_name: Callable[[str], str]
) -> None:
    name, start = unique_name("map"), audit.mark()
    path = "/api/v1/namespaces/default/configmaps"
    kube.create(path, {"metadata": {"name": name}, "data": {"a": "1"}})
    other_writer.merge(f"{path}/{name}", {"data": {"a": "2"}})
    kube.get(f"{path}/{name}")
    kube.delete(f"{path}/{name}")

    writes = audit.writes(start, name=name)

    assert [(w.user, w.verb, w.status) for w in writes] == [
        ("admin", "create", 201),
        ("somebody-else", "patch", 200),
        ("admin", "delete", 200),
    ]
    assert writes[1].request == {"data": {"a": "2"}}


def test_the_controllers_account_may_not_touch_pods_nor_read_secrets(
    own_control_plane: Callable[..., ControlPlane],
) -> None:
    """As it is installed without seat release."""
    base = Options(scheduler=False, controller_manager=False, rbac_files=RBAC_FILES[:1])
    control_plane = own_control_plane(base)
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    with control_plane.client("controller") as controller:

        def allowed(verb: str, resource: str, group: str = "") -> bool:
            attributes = {"verb": verb, "resource": resource, "group": group, "namespace": "kube-node-lease"}
            body = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            return bool(controller.create(reviews, body)["status"]["allowed"])

        assert allowed("patch", "nodes")
        assert allowed("update", "leases", "coordination.k8s.io")
        assert not allowed("get", "secrets")
        assert not allowed("create", "pods")
        assert not allowed("delete", "pods")


def test_the_api_server_comes_back_on_its_port_with_its_data(
    own_control_plane: Callable[..., ControlPlane],
) -> None:
    plane = own_control_plane()
    with plane.client() as client:
        client.create("/api/v1/namespaces", {"metadata": {"name": "kept"}})
        plane.restart_api_server()
        assert client.find("/api/v1/namespaces/kept") is not None


_STARTER = """
import sys, pathlib, time
from devenv.control_plane import ControlPlane, Options
plane = ControlPlane(pathlib.Path(sys.argv[1]), Options(scheduler=False, controller_manager=False))
plane.start()
print(plane.part("etcd").pid, plane.part("kube-apiserver").pid, flush=True)
time.sleep(600)
"""


def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _STARTER, tmp_path], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert len(pids) == 2
        starter.kill()

    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), what="etcd and the API server ending")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_kubeconfig_and_cleans_up_when_told_to_end(number: signal.Signals) -> None:
    command = [str(REPOSITORY / "run"), "control-plane"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as plane,
        contextlib.ExitStack() as on_the_way_out,
    ):
        on_the_way_out.callback(plane.terminate)
        assert plane.stdout is not None
        key, _, value = plane.stdout.readline().strip().partition("=")
        kubeconfig = Path(value)
        assert (key, kubeconfig.exists()) == ("KUBECONFIG", True)
        children = psutil.Process(plane.pid).children(recursive=True)
        plane.send_signal(number)
        assert plane.wait(60) == 0

    assert len(children) == 4
    assert not [child.pid for child in children if child.is_running()]
    assert not kubeconfig.exists()


def test_leased_ports_differ_and_can_be_leased_again() -> None:
    leases = [PortLease() for _ in range(50)]
    assert len({lease.port for lease in leases}) == 50
    for lease in leases:
        lease.release()
        lease.release()
