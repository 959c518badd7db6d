"""A host's certificate runs out as they do in earnest: warned of for weeks, unnoticed until a restart, then mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from devenv.cocoon_programs import AgentProcess, ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support import cluster, pki
from tests.support.controller_command import run_command
from tests.support.metrics import metric
from tests.support.waiting import wait_for

# A silent agent is called so after 30 s; files are looked at every 10 s.
SECONDS = 75.0


@pytest.mark.timeout(300)
def test_a_certificate_runs_out_and_is_replaced(
    agent_process: Callable[..., AgentProcess],
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    kube: KubeApi,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    """F22: the Node says all the time what is wrong, and whose certificate it is."""
    authority, node = pki.authority(), unique_name("tls-node")
    theirs, ours = pki.TlsDirectory(tmp_path / "agent-tls"), pki.TlsDirectory(tmp_path / "controller-tls")
    for files in (theirs, ours):
        files.trust(authority)
    ours.use(pki.issue(authority, pki.CONTROLLER))
    theirs.use(pki.issue(authority, node, begins_in_days=-400, ends_in_days=5))
    agent = agent_process(theirs.agent_settings(), node)
    controller = controller_process(
        agent,
        settings={
            "COCOON_NODE_CONTROLLER_TLS_CA_FILE": str(ours.authorities),
            "COCOON_NODE_CONTROLLER_TLS_CERT_FILE": str(ours.certificate),
            "COCOON_NODE_CONTROLLER_TLS_KEY_FILE": str(ours.key),
        },
    )

    def wait_told(kind: str, reason: str) -> None:
        wait_for(
            lambda: cluster.condition(kube.get(f"{cluster.NODES}/{node}"), kind).get("reason") == reason,
            SECONDS,
            what=f"{kind} having the reason {reason}",
        )

    cluster.wait_ready(kube, node)
    wait_told("CocoonCertificateProblem", "CertificateRunsOut")
    assert metric(agent.http_address, "cocoon_node_tls_runs_out_soon") == 1
    assert metric(controller.http_address, "cocoon_node_tls_runs_out_soon") == 0
    table = run_command(control_plane.kubeconfig(), [agent], "nodes", settings={"COLUMNS": "300"})
    assert "CocoonCertificateProblem" in next(line for line in table.splitlines() if line.startswith(f"{node} "))

    # It runs out: the open connection goes on, and the Node says what the next one will meet.
    theirs.use(pki.issue(authority, node, begins_in_days=-400, ends_in_days=-1))
    wait_told("CocoonCertificateProblem", "CertificateUnusable")
    wait_told("CocoonAgentReachable", "AgentReporting")
    agent.restart()
    wait_told("CocoonAgentReachable", "AgentCertificateRanOut")

    theirs.use(pki.issue(authority, node))
    wait_told("CocoonAgentReachable", "AgentReporting")
    wait_told("CocoonCertificateProblem", "CertificateHolds")
    cluster.wait_ready(kube, node)
