"""The real scheduler counts with what the Node says: a pod that fits is bound, one unit more is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.kube_api import KubeApi
from tests.support import cluster

_HOST = {
    "VK_NODE_CPU": "4",
    "VK_NODE_MEM": "10Gi",
    "VK_NODE_STORAGE": "100Gi",
    "VK_NODE_HUGEPAGES": "1Gi",
    "VK_NODE_PODS": "3",
}
_PAGE = 2 << 20


@pytest.fixture
def pod(kube: KubeApi, unique_name: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """A function that creates a pod and returns its name; all are removed afterwards."""
    names: list[str] = []

    def create(selector: dict[str, str], requests: dict[str, str] | None = None) -> str:
        name = unique_name("pod")
        cluster.create_pod(kube, name, selector=selector, requests=requests)
        names.append(name)
        return name

    yield create
    for name in names:
        cluster.delete_pod(kube, name)


def test_each_resource_is_sold_to_the_last_unit_and_no_further(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    pod: Callable[..., str],
) -> None:
    agent = agent_process(_HOST)
    controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)
    here = {cluster.HOSTNAME: agent.node_name}
    pages = (1 << 30) * 80 // 100 // _PAGE
    table = [
        ("cpu", "3", "3001m"),
        ("memory", str(8 << 30), str((8 << 30) + 1)),
        ("ephemeral-storage", str(80 << 30), str((80 << 30) + 1)),
        ("hugepages-2Mi", str(pages * _PAGE), str((pages + 1) * _PAGE)),
    ]

    for resource, fits, too_much in table:
        refused = pod(here, {resource: too_much})
        assert cluster.placement(kube, refused) == "", f"{resource}: {too_much} is more than there is"
        assert f"Insufficient {resource}" in cluster.why_unschedulable(kube, refused)
        bound = pod(here, {resource: fits})
        assert cluster.placement(kube, bound) == agent.node_name, f"{resource}: {fits} fits exactly"
        cluster.delete_pod(kube, bound)
        cluster.delete_pod(kube, refused)


def test_no_more_pods_than_configured(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    pod: Callable[..., str],
) -> None:
    agent = agent_process(_HOST)
    controller_process(agent)
    cluster.wait_ready(kube, agent.node_name)

    placements = [cluster.placement(kube, pod({cluster.HOSTNAME: agent.node_name})) for _ in range(4)]

    assert placements == [agent.node_name] * 3 + [""]


def test_pool_and_cpu_class_choose_the_node(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    pod: Callable[..., str],
    unique_name: Callable[[str], str],
) -> None:
    pool = unique_name("pool")
    first = agent_process({"VK_NODE_POOL": pool, "VK_SNAPSHOT_CPU_CLASS": "class-a"})
    second = agent_process({"VK_NODE_POOL": pool, "VK_SNAPSHOT_CPU_CLASS": "class-b"})
    controller_process(first, second)
    for agent in (first, second):
        cluster.wait_ready(kube, agent.node_name)

    def lands(pool_wanted: str, class_wanted: str) -> str:
        return cluster.placement(kube, pod({cluster.POOL: pool_wanted, cluster.CPU_CLASS: class_wanted}))

    assert lands(pool, "class-a") == first.node_name
    assert lands(pool, "class-b") == second.node_name
    assert lands(pool, "class-c") == ""
    assert lands(f"{pool}-other", "class-a") == ""
