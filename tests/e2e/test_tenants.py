"""What a tenant who may create pods can reach of another tenant's snapshots: nothing, whatever the pods say.

The victim's suspended VM has its copy kept on one host. Each attack is a pod of another namespace that lives and goes,
on that host or beside it; the victim's copy and the promise for it are the same after all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from devenv.cocoon_programs import ControllerProcess
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.snapshot_calls import snapshots, state
from tests.support.vm_host import KEEP, RESTORE, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

SECONDS = 40.0
NAME = "vm.cocoonstack.io/name"
VM_ID = "vm.cocoonstack.io/id"


@dataclass(frozen=True, slots=True)
class Attack:
    """A pod of the attacker; `same_name` makes the victim's VM name by itself, as `a`/`b-c` and `a-b`/`c` do."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    same_name: bool = False
    elsewhere: bool = False
    takes_name: bool = True


ATTACKS = {
    "claims the VM name by annotation": Attack(),
    "claims the name of its fork baseline": Attack({NAME: "fork-"}),
    "claims it elsewhere and says it woke": Attack({RESTORE: "true", VM_ID: "made-up"}, elsewhere=True),
    "claims it elsewhere": Attack(elsewhere=True),
    "claims it with a keep flag of its own": Attack({KEEP: "true"}),
    "has namespace and name that make the VM name": Attack(same_name=True, takes_name=False),
    "the same elsewhere, and says it woke": Attack(
        {RESTORE: "true", VM_ID: "made-up"}, same_name=True, elsewhere=True, takes_name=False
    ),
}


@pytest.fixture
def namespaces(kube: KubeApi, unique_name: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """The victim's namespace and the attacker's: the second is the first one's beginning, up to a dash."""
    attackers = unique_name("tenant")
    made = (f"{attackers}-a", attackers)
    for name in made:
        kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield made
    for name in made:
        kube.discard(f"/api/v1/namespaces/{name}")


def _is_kept(host: VmHost, vm: str, uid: str) -> bool:
    found = snapshots(host.agent.address).get(vm)
    return found is not None and found.HasField("retention") and found.retention.owner.pod_uid == uid


def test_no_pod_of_another_tenant_reaches_a_kept_snapshot(
    vm_host: Callable[..., VmHost],
    controller_process: Callable[..., ControllerProcess],
    cocoonsets: None,
    kube: KubeApi,
    namespaces: tuple[str, str],
    unique_name: Callable[[str], str],
) -> None:
    """F29, F31: neither is it purged, nor released, nor kept for somebody else."""
    victims, attackers = namespaces
    here, elsewhere = vm_host(), vm_host()
    controller = controller_process(here.agent, elsewhere.agent)
    for host in (here, elsewhere):
        cluster.wait_ready(kube, host.node)
    owner = create_set(kube, "db", suspend=True, stash=here.node, namespace=victims)
    pod = here.create_pod("db-0", owner=owner, annotations={KEEP: "true"}, namespace=victims)
    vm = f"vk-{victims}-db-0"
    written = here.write(vm)
    here.write(f"fork-{vm}")
    _wait_claimed(here, vm)
    kube.discard(pod_path("db-0", victims), gracePeriodSeconds=0)
    uid = pod["metadata"]["uid"]
    wait_for(lambda: _is_kept(here, vm, uid), SECONDS, what="the victim's snapshot being kept")

    for number, attack in enumerate(ATTACKS.values()):
        host = elsewhere if attack.elsewhere else here
        # a-db-0 in the attacker's namespace makes the name that db-0 makes in the victim's.
        name = "a-db-0" if attack.same_name else f"attack-{number}"
        annotations = dict(attack.annotations)
        if attack.takes_name:
            annotations[NAME] = f"{annotations.get(NAME, '')}{vm}"
        host.create_pod(name, annotations=annotations, namespace=attackers, grace_seconds=0)
        claimed = annotations.get(NAME, vm)
        if attack.elsewhere:
            # What the attacker's VM may have written on that host under that name.
            host.write(claimed)
        _wait_claimed(host, claimed)
        kube.discard(pod_path(name, attackers), gracePeriodSeconds=0)
        _settle(host, kube, unique_name("marker"))
        _settle(here, kube, unique_name("marker"))
        assert _is_kept(here, vm, uid), attack
        assert here.snapshot_id(vm) == written, attack
        assert here.has(f"fork-{vm}"), attack

    assert state(here.agent.address, vm) == "RETAINED"
    assert controller.process.running
    # The victim's promise still ends with its set; what the attacker's flag keeps is left to collection.
    kube.delete(set_path("db", victims))
    wait_for(lambda: not _is_kept(here, vm, uid), SECONDS, what="the promise ending with its set")


def _wait_claimed(host: VmHost, name: str) -> None:
    wait_for(lambda: state(host.agent.address, name) == "IN_USE", SECONDS, what=f"{name} being claimed")


def _settle(host: VmHost, kube: KubeApi, name: str) -> None:
    """Return once the controller has decided something later on that host: another pod's teardown."""
    vm = f"vk-default-{name}"
    host.create_pod(name, grace_seconds=0)
    host.write(vm)
    _wait_claimed(host, vm)
    kube.discard(pod_path(name), gracePeriodSeconds=0)
    wait_for(lambda: not host.has(vm), SECONDS, what="the marker being purged")
