"""The manifests: what the API's schemas and a real API server say to them, and whether they agree with the programs."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped] # it has no types
import pytest
import yaml

from agent.config import SETTINGS as AGENT_SETTINGS
from common.version import VERSION
from controller.config import SETTINGS as CONTROLLER_SETTINGS
from devenv.cocoon_programs import environment_with
from devenv.control_plane import ControlPlane
from devenv.kube_api import ApiError, Json, KubeApi, object_path
from devenv.toolchain import REPOSITORY
from tests.support.manifests import DEPLOY, INSTALLABLE, find, kubectl, rendered

_WORKLOADS = {"Deployment", "DaemonSet"}
_API_VERSION = "1.36"
_PAGE = REPOSITORY / "docs/installation.md"


def _workloads() -> list[Any]:
    return [
        pytest.param(folder, each, id=f"{folder}:{each['metadata']['name']}")
        for folder in INSTALLABLE
        for each in rendered(folder)
        if each["kind"] in _WORKLOADS
    ]


@pytest.mark.parametrize("folder", INSTALLABLE)
def test_every_object_fits_the_schema_of_its_kind(folder: str) -> None:
    objects = rendered(folder)
    assert objects
    for each in objects:
        kubernetes_validate.validate(each, _API_VERSION, strict=True)


@pytest.mark.parametrize("folder", INSTALLABLE)
def test_the_real_api_server_takes_every_object(folder: str, control_plane: ControlPlane, kube: KubeApi) -> None:
    """Applied as an operator applies it; unknown and doubled fields are errors."""
    existing = {object_path(each) for each in rendered(folder) if kube.find(object_path(each)) is not None}
    try:
        answer = _apply(control_plane, folder)
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.count("serverside-applied") == len(rendered(folder))
        for each in rendered(folder):
            live = kube.get(object_path(each))
            assert _missing(each, live) == [], object_path(each)
    finally:
        for each in rendered(folder):
            if each["kind"] != "Namespace" and object_path(each) not in existing:
                kube.discard(object_path(each))


@pytest.mark.parametrize(("folder", "workload"), _workloads())
def test_pods_are_admitted_to_their_namespace_and_may_do_little(folder: str, workload: Json, kube: KubeApi) -> None:
    namespace = workload["metadata"]["namespace"]
    kube.apply(f"/api/v1/namespaces/{namespace}", find_namespace(namespace), manager="development")
    pod = {"metadata": {"generateName": "admitted-"}, "spec": copy.deepcopy(workload["spec"]["template"]["spec"])}
    pods = f"/api/v1/namespaces/{namespace}/pods"

    kube.create(pods, pod, dryRun="All")

    for container in workload["spec"]["template"]["spec"]["containers"]:
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {"livenessProbe", "readinessProbe", "startupProbe", "resources"} <= container.keys()
    assert workload["spec"]["template"]["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_controllers_namespace_refuses_what_may_do_more(kube: KubeApi) -> None:
    pods = "/api/v1/namespaces/cocoon-system/pods"
    kube.apply("/api/v1/namespaces/cocoon-system", find_namespace("cocoon-system"), manager="development")
    spec = copy.deepcopy(find("base", "Deployment", "cocoon-node-controller")["spec"]["template"]["spec"])
    spec["containers"][0]["securityContext"].pop("capabilities")

    with pytest.raises(ApiError, match="violates PodSecurity"):
        kube.create(pods, {"metadata": {"generateName": "refused-"}, "spec": spec}, dryRun="All")


@pytest.mark.parametrize(("folder", "workload"), _workloads())
def test_settings_of_the_pods_are_settings_of_the_programs(folder: str, workload: Json, tmp_path: Path) -> None:
    container = workload["spec"]["template"]["spec"]["containers"][0]
    program = workload["metadata"]["name"]
    known = {setting.variable for setting in (AGENT_SETTINGS if "agent" in program else CONTROLLER_SETTINGS)}
    settings = _expanded(container["env"])
    ours = {name: value for name, value in settings.items() if not name.startswith("HOST_")}

    assert set(ours) <= known
    checked = subprocess.run(
        [Path(sys.executable).with_name(program), "config", "check"],
        env=environment_with(ours), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stderr) == (0, "")
    assert container["image"] == f"{program}:{VERSION}"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = container[probe]["httpGet"]
        listens = ours["COCOON_NODE_HTTP_LISTEN" if "agent" in program else "COCOON_NODE_CONTROLLER_HTTP_LISTEN"]
        assert str(ports.get(request["port"], request["port"])) == listens.rpartition(":")[2]
        assert request["path"] == ("/readyz" if probe == "readinessProbe" else "/healthz")


def test_selectors_select_what_they_are_for() -> None:
    labels = find("base", "Deployment", "cocoon-node-controller")["spec"]["template"]["metadata"]["labels"]
    for kind, field in (("Service", "selector"), ("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selector = find("base", kind, "cocoon-node-controller")["spec"][field]
        assert (selector.get("matchLabels", selector)).items() <= labels.items()


def test_the_daemonset_sees_of_its_host_what_it_needs_and_may_write_two_directories() -> None:
    pod = find("overlays/agents-daemonset", "DaemonSet", "cocoon-node-agent")["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    mounts = pod["containers"][0]["volumeMounts"]

    assert {paths[mount["name"]] for mount in mounts if not mount.get("readOnly")} == {
        "/var/lib/cocoon/snapshots",
        "/var/lib/cocoon-node",
    }
    assert pod["hostNetwork"] is True
    assert not pod.get("hostPID")
    assert pod["automountServiceAccountToken"] is False


def test_the_overlay_of_the_installation_page_runs_the_image_it_names(tmp_path: Path) -> None:
    (kustomization,) = re.findall(
        r"kustomization\.yaml <<'END'\n(.*?)^END$", _PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy)
    mine = deploy / "overlays/mine"
    mine.mkdir()
    (mine / "kustomization.yaml").write_text(kustomization.replace("REGISTRY", "registry.example"))
    command = [str(kubectl()), "kustomize", str(mine)]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert made.returncode == 0, made.stderr
    (deployment,) = [each for each in yaml.safe_load_all(made.stdout) if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example/cocoon-node-controller:{VERSION}"
    assert "COCOON_NODE_CONTROLLER_TLS_CERT_FILE" in {each["name"] for each in container["env"]}


def find_namespace(name: str) -> Json:
    """Return the manifest of a namespace."""
    return next(
        each
        for folder in INSTALLABLE
        for each in rendered(folder)
        if each["kind"] == "Namespace" and each["metadata"]["name"] == name
    )


def _apply(plane: ControlPlane, folder: str) -> subprocess.CompletedProcess[str]:
    options = ["--server-side", "--force-conflicts", "--validate=strict", "-k", str(DEPLOY / folder)]
    command = [str(kubectl()), f"--kubeconfig={plane.kubeconfig()}", "apply", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def _missing(wanted: Any, live: Any, path: str = "") -> list[str]:  # noqa: ANN401 -- any part of an object
    """Paths of `wanted` that `live` does not have, or has otherwise; lists are compared by position."""
    if isinstance(wanted, dict):
        return [
            gap
            for key, value in wanted.items()
            for gap in ([f"{path}.{key}"] if key not in live else _missing(value, live[key], f"{path}.{key}"))
        ]
    if isinstance(wanted, list):
        if len(wanted) != len(live):
            return [path]
        return [gap for i, value in enumerate(wanted) for gap in _missing(value, live[i], f"{path}[{i}]")]
    return [] if wanted == live else [f"{path}: {wanted!r} is {live!r}"]


def _expanded(environment: list[Json]) -> dict[str, str]:
    """Return a pod's variables as its container sees them, on an imaginary host."""
    fields = {"spec.nodeName": "worker-1", "status.hostIP": "192.0.2.11"}
    values: dict[str, str] = {}
    for entry in environment:
        value = fields[entry["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in entry else entry["value"]
        for name, known in values.items():
            value = value.replace(f"$({name})", known)
        values[entry["name"]] = value
    return values
