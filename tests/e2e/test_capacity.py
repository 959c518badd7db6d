"""The host's real figures arrive in the Kubernetes API, and follow the host."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.kube_api import Json, KubeApi
from tests.support import cluster
from tests.support.machine import Hugepages
from tests.support.waiting import wait_for

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def _bytes(quantity: str) -> int:
    """Bytes in a published quantity: whole, in the binary units the contract allows."""
    unit = quantity[-2:]
    return int(quantity[:-2]) * _UNITS[unit] if unit in _UNITS else int(quantity)


def _meminfo_kib(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0])
    raise AssertionError(f"{key} is not in /proc/meminfo")


def test_the_node_shows_what_this_machine_has(
    host_memory: None,
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    """F1, F2: the host's figures, whatever share of them this process may use."""
    agent = agent_process()
    controller_process(agent)
    node = cluster.wait_ready(kube, agent.node_name)
    capacity, allocatable = node["status"]["capacity"], node["status"]["allocatable"]

    processors = int(subprocess.run(["nproc", "--all"], capture_output=True, text=True, check=True).stdout)
    file_system = os.statvfs(agent.root)
    assert capacity["cpu"] == str(processors)
    assert capacity["memory"] == f"{_meminfo_kib('MemTotal')}Ki"
    assert _bytes(capacity["ephemeral-storage"]) == file_system.f_blocks * file_system.f_frsize
    assert capacity["pods"] == allocatable["pods"] == "256"
    whole = processors * 80 // 100
    assert allocatable["cpu"] == (str(whole) if whole else f"{processors * 800}m")
    assert _bytes(allocatable["memory"]) == _meminfo_kib("MemTotal") * 1024 * 80 // 100
    # Free space moves while other tests run; the exact formula is proved on fixed numbers elsewhere.
    assert 0 < _bytes(allocatable["ephemeral-storage"]) <= _bytes(capacity["ephemeral-storage"]) * 80 // 100


def test_the_node_looks_as_promised_to_other_software(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    agent = agent_process({"VK_PROVIDER_ID": "cocoon://demo/1", "VK_NODE_IP": "192.0.2.7"})
    controller_process(agent)
    node = cluster.wait_ready(kube, agent.node_name)

    labels = node["metadata"]["labels"]
    assert labels[cluster.POOL] == "default"
    assert labels[cluster.ROLE] == ""
    assert labels[cluster.HOSTNAME] == agent.node_name
    assert labels["kubernetes.io/os"] == "linux"
    assert labels["type"] == "virtual-kubelet"
    assert cluster.CPU_CLASS not in labels
    assert node["metadata"]["annotations"]["cocoonstack.io/registered-by"] == "cocoon-node-controller"
    assert node["spec"]["providerID"] == "cocoon://demo/1"
    assert {(t["key"], t.get("value"), t["effect"]) for t in node["spec"]["taints"]} == {
        ("virtual-kubelet.io/provider", "cocoon", "NoSchedule")
    }
    assert sorted((a["type"], a["address"]) for a in node["status"]["addresses"]) == [
        ("Hostname", agent.node_name),
        ("InternalIP", "192.0.2.7"),
    ]
    statuses = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    assert statuses["Ready"] == statuses["CocoonAgentReachable"] == "True"
    assert {statuses[kind] for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")} == {"False"}
    lease = cluster.wait_lease(kube, agent.node_name)
    assert lease["spec"]["holderIdentity"] == "cocoon-node-controller"
    assert lease["spec"]["leaseDurationSeconds"] == 40


def test_huge_pages_appear_and_go_with_the_host(
    hugepages: Hugepages,
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
) -> None:
    """F4: pages added and taken away while the agent runs are seen at the next refresh, shrink included."""
    hugepages.set(0)
    agent = agent_process({"COCOON_NODE_REFRESH_SECONDS": "1"})
    controller_process(agent)
    node = cluster.wait_ready(kube, agent.node_name)
    assert "hugepages-2Mi" not in node["status"]["capacity"]

    def published(kind: str, quantity: str | None) -> Callable[[], bool]:
        def seen() -> bool:
            status: Json = kube.get(f"{cluster.NODES}/{agent.node_name}")["status"]
            return bool(status[kind].get("hugepages-2Mi") == quantity)

        return seen

    for pages, capacity, allocatable in ((8, "16Mi", "13421772"), (5, "10Mi", "8Mi"), (0, None, None)):
        hugepages.set(pages)
        wait_for(published("capacity", capacity), 20, what=f"{pages} pages in the capacity")
        wait_for(published("allocatable", allocatable), 20, what=f"{pages} pages in the allocatable")
