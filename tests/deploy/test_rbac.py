"""The shipped rights are enough and not too many: what the controller is seen to do is allowed, what is allowed is seen
to be done, and no rule can be taken away without something being refused.

A control plane of their own, because roles are changed under a running controller and every request is logged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devenv.audit_log import audit_mark
from devenv.cocoon_programs import environment_with
from devenv.control_plane import ControlPlane, Options
from devenv.kube_api import KubeApi, object_path
from tests.support import access, cluster
from tests.support.access import Right, Rule
from tests.support.controller_command import run_command
from tests.support.seat_place import SeatPlace, seat_place
from tests.support.vm_host import VmHost, install_sets, pod_path, set_path, sets_served
from tests.support.waiting import wait_for

# EndpointSlices are asked for too; none can hold an address of loopback.
_SETTINGS = {
    "COCOON_NODE_CONTROLLER_AGENTS_SERVICE": "cocoon-system/agents",
    "COCOON_NODE_CONTROLLER_LEASE_NAME": "cocoon-node-controller",
}
# A Lease that no other test has made.
_FROM_THE_START = _SETTINGS | {"COCOON_NODE_CONTROLLER_LEASE_NAME": "from-the-start"}

_FINALIZERS = Right("*", "cocoonset.cocoonstack.io", "cocoonsets/finalizers", "update")
# What no request of ours shows, and why it is needed all the same.
_NEVER_SEEN = {
    Right("*", "events.k8s.io", "events", "patch"): "a statement is repeated after five minutes at the earliest",
    _FINALIZERS: "an admission plugin asks whether we might, when a pod that blocks its owner's deletion is created",
}
_ASKED_BY_ADMISSION = {_FINALIZERS: Right("*", "", "pods", "create")}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that logs everything the controller asks for, with CocoonSets served and owners protected."""
    folder = tmp_path_factory.mktemp("rbac")
    policy = folder / "audit-policy.json"
    policy.write_text(json.dumps(access.AUDIT_POLICY))
    flags = [f"--audit-policy-file={policy}", "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]
    options = Options(node_monitor_period_seconds=1, extra_flags={"kube-apiserver": flags})
    with ControlPlane(folder / "control-plane", options) as running:
        with running.client() as kube:
            install_sets(kube)
            wait_for(lambda: sets_served(kube), 30, what="CocoonSets being served")
        yield running


@pytest.fixture
def admin(plane: ControlPlane) -> Iterator[KubeApi]:
    """An administrator of that control plane."""
    with plane.client() as client:
        yield client


@pytest.fixture
def place(
    plane: ControlPlane, admin: KubeApi, tmp_path: Path, unique_name: Callable[[str], str]
) -> Iterator[SeatPlace]:
    """A host, a registry, and whatever controllers the test starts."""
    with seat_place(plane, admin, tmp_path, unique_name("pool")) as made:
        made.add_host(unique_name("host"))
        yield made


@pytest.mark.timeout(300)
def test_everything_allowed_is_needed_and_everything_needed_is_allowed(
    place: SeatPlace, plane: ControlPlane, admin: KubeApi
) -> None:
    """A Node's and a pod's whole life, seats freed and taken, a change of leader, and every command a person has."""
    host = place.hosts[0]
    before = audit_mark(plane.audit_log)
    first = place.controller(_FROM_THE_START)
    place.run("web")
    place.put_to_sleep("web")
    place.controller(_FROM_THE_START)
    first.stop()
    place.wake("web")
    place.wait_phase("web", "Running")
    admin.delete(set_path("web"))
    admin.discard(pod_path("web-0"))  # unless the garbage collector was faster
    wait_for(lambda: not host.has("vk-default-web-0"), 60, what="the snapshot being purged")
    _use_every_command(plane, admin, host)

    seen = access.asked(plane.audit_log, since=before)
    granted = {right for rule in access.rules() for right in rule.rights}
    assert access.asked(plane.audit_log, status=403, since=before) == set()
    assert {right for right in seen if not any(grant.covers(right) for grant in granted)} == set()
    unused = {grant for grant in granted if not any(grant.covers(right) for right in seen)}
    assert unused == _NEVER_SEEN.keys(), "\n".join(map(str, unused ^ _NEVER_SEEN.keys()))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "rule", access.rules(), ids=lambda rule: f"{rule.role.replace('/', ':')}-{rule.index}-{rule.rights[0].resource}"
)
def test_without_the_rule_something_is_refused(
    rule: Rule, place: SeatPlace, plane: ControlPlane, admin: KubeApi
) -> None:
    """Each rule is taken away before a start; the API server's own log then shows a needed request refused."""
    role = access.without(rule)
    admin.replace(object_path(role), role)
    try:
        before = audit_mark(plane.audit_log)
        controller = place.make_controller(_SETTINGS)
        controller.process.environment = environment_with(controller.settings)
        controller.process.start()
        # Its set is made at once, so that a pod is asked for as soon as everything else is there.
        place.create_set("web")
        wait_for(lambda: _refused(plane, rule, before), 90, what=f"a refusal for want of {rule}")
    finally:
        for shipped in access.roles():
            admin.replace(object_path(shipped), shipped)


def _refused(plane: ControlPlane, rule: Rule, since: int) -> set[Right]:
    wanted = {_ASKED_BY_ADMISSION.get(right, right) for right in rule.rights}
    asked = access.asked(plane.audit_log, status=403, since=since)
    return {right for right in asked if any(grant.covers(right) for grant in wanted)}


def _use_every_command(plane: ControlPlane, admin: KubeApi, host: VmHost) -> None:
    def command(*words: str) -> str:
        return run_command(plane.kubeconfig("controller"), [host.agent], *words, settings=_FROM_THE_START)

    node = host.node
    for words in (
        ["plan"],
        ["nodes"],
        ["why", "default/nobody"],
        ["locate", "vk-default-nobody"],
        ["plan", "--release"],
    ):
        command(*words)
    admin.merge(f"{cluster.NODES}/{node}", {"status": {"nodeInfo": {"machineID": "0" * 32}}})
    command("accept", node)
    host.agent.stop()
    wait_for(lambda: "forgotten" in _try_forget(command, node), 60, what="the host being forgotten")


def _try_forget(command: Callable[..., str], node: str) -> str:
    try:
        command("forget", node, "--yes")
    except AssertionError as refusal:
        return str(refusal)
    return "forgotten"
