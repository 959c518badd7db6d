"""Two controllers of one cluster: one keeps Nodes, the other waits and takes over without anybody noticing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.audit import AuditLog
from tests.support.metrics import metric
from tests.support.waiting import wait_for

_FIXED = {"VK_NODE_CPU": "4", "VK_NODE_MEM": "8Gi", "VK_NODE_STORAGE": "100Gi", "VK_NODE_HUGEPAGES": "0"}


def _count(controller: ControllerProcess, name: str, **labels: str) -> float:
    return metric(controller.http_address, name, **labels)


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.timeout(180)
def test_a_follower_writes_nothing_until_it_leads_and_then_nothing_that_is_right(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    audit: AuditLog,
    unique_name: Callable[[str], str],
    end: str,
) -> None:
    """F11: whoever takes over renews the leases first, and calls no agent silent that it has not listened to."""
    agent = agent_process(_FIXED)
    shared = {"COCOON_NODE_CONTROLLER_LEASE_NAME": unique_name("leader")}
    leader = controller_process(agent, settings=shared)
    before = cluster.wait_ready(kube, agent.node_name)
    follower = controller_process(agent, settings=shared)

    renewals = _count(leader, "cocoon_node_lease_renewals_total", outcome="done")
    wait_for(
        lambda: _count(leader, "cocoon_node_lease_renewals_total", outcome="done") > renewals + 1,
        60,
        what="the leader renewing the Node's lease beside its follower",
    )
    for name in ("cocoon_node_lease_renewals_total", "cocoon_node_writes_total", "cocoon_node_agents_reachable"):
        assert _count(follower, name) == 0, name

    mark = audit.mark()
    getattr(leader, end)()
    wait_for(
        lambda: _count(follower, "cocoon_node_lease_renewals_total", outcome="taken_over") == 1,
        30,
        what="the follower taking the lease over",
    )
    agent.settings["VK_NODE_POOL"] = "after"
    agent.restart()
    wait_for(
        lambda: kube.get(f"{cluster.NODES}/{agent.node_name}")["metadata"]["labels"][cluster.POOL] == "after",
        30,
        what="the next change being written by the new leader",
    )
    writes = cluster.node_writes(audit, mark, agent.node_name)
    assert [(write.verb, write.subresource) for write in writes] == [("patch", "")], writes
    after = kube.get(f"{cluster.NODES}/{agent.node_name}")
    for kind in ("Ready", "CocoonAgentReachable"):
        assert cluster.condition(after, kind) == cluster.condition(before, kind)
