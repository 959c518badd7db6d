"""Neighbouring versions meet: real controller, real agent, and between them the bytes of another minor version.

What is asked each time is what the two programs are for: right figures on the Node, what is flagged is kept, what is
torn down goes, and a promise ends with its set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from cocoonstack.node.v1 import node_resources_pb2, snapshot_cache_pb2
from common.version import VERSION
from devenv.cocoon_programs import ControllerProcess
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support import cluster
from tests.support.controller_command import run_command
from tests.support.metrics import metric
from tests.support.other_version import VersionProxy, as_it_is, newer, next_version, older, previous_version
from tests.support.snapshot_calls import retention, state
from tests.support.vm_host import KEEP, VmHost, create_set, pod_path, set_path
from tests.support.waiting import wait_for

SECONDS = 40.0
_CHANGES = ("SyncOwners", "RetainSnapshots", "ReleaseRetention", "PurgeSnapshots", "CollectGarbage")
# Since the first version the answer itself, and what keeps a second cluster out: nothing is done without them.
_NEVER_MISSING = frozenset({"RetainSnapshotsResponse.outcome"} | {f"{name}Request.cluster_id" for name in _CHANGES})
_REASON_OF_THE_NEXT = {
    "RetainSnapshotsRequest": snapshot_cache_pb2.RETAIN_REASON_REQUESTED + 1,
    "ReleaseRetentionRequest": snapshot_cache_pb2.RELEASE_REASON_REQUESTED + 1,
    "PurgeSnapshotsRequest": snapshot_cache_pb2.PURGE_REASON_REQUESTED + 1,
}


def minors_away(minors: int) -> str:
    """A version this many minor versions from ours."""
    major, minor, _ = VERSION.split(".")
    return f"{major}.{int(minor) + minors}.0"


def _newer_agent(name: str, message: Any) -> None:  # noqa: ANN401 - a message of the next version
    """What an agent of the next version may say beyond new fields."""
    for report in _reports(name, message):
        report.agent_version = minors_away(1)
        report.addresses.add(type="ExternalDNS", address="host.example")
        for resource in report.resources:
            resource.source = node_resources_pb2.RESOURCE_SOURCE_OVERRIDDEN + 1
        report.conditions.add(type="CocoonFromNextVersion", status=9, reason="New", message="a status of the next one")
    if name == "SyncOwnersResponse":
        for each in message.unclaimed_snapshots:
            each.state = snapshot_cache_pb2.SNAPSHOT_STATE_UNCLAIMED + 1
    if name == "PurgeSnapshotsResponse":
        message.results.add(
            name="fork-of-another-kind", outcome=snapshot_cache_pb2.PURGE_OUTCOME_NOTHING_TO_PURGE, bytes=7
        )


def _newer_controller(name: str, message: Any) -> None:  # noqa: ANN401 - a message of the next version
    """Every reason is one that this version has not got."""
    if name in _REASON_OF_THE_NEXT:
        message.reason = _REASON_OF_THE_NEXT[name]


def _reports(name: str, message: Any) -> list[Any]:  # noqa: ANN401 - a message of the next version
    return [message.report] if name.endswith("NodeResourcesResponse") and message.HasField("report") else []


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who is of which version: what becomes of requests and answers, and how the controller counts the agent."""

    requests: Any = as_it_is
    answers: Any = as_it_is
    skew: str = "same"
    retained_for: str = "SEAT_RELEASE"
    unserved: frozenset[str] = frozenset()


def _meetings() -> Mapping[str, Meeting]:
    after, before = next_version(), previous_version(_NEVER_MISSING)
    return {
        "a newer agent": Meeting(answers=newer(after, _newer_agent), skew="newer"),
        "a newer controller": Meeting(requests=newer(after, _newer_controller), retained_for="REQUESTED"),
        "an older agent": Meeting(
            # What an agent does not know of a request is not there for it.
            requests=older(before),
            answers=older(before),
            skew="unknown",
            unserved=frozenset({"VerifySnapshot", "GetCacheUsage", "WatchSnapshots"}),
        ),
    }


@pytest.fixture
def host(vm_host: Callable[..., VmHost], cocoonsets: None) -> VmHost:
    """A host without a controller yet."""
    return vm_host()


def _claimed_pod(host: VmHost, name: str, **options: Any) -> str:  # noqa: ANN401 - those of create_pod
    host.create_pod(name, **options)
    vm = f"vk-default-{name}"
    host.write(vm)
    wait_for(lambda: state(host.agent.address, vm) == "IN_USE", SECONDS, what=f"{vm} being in use")
    return vm


def _wait_counted(controller: ControllerProcess, skew: str) -> None:
    name = "cocoon_node_agent_version_skew"
    wait_for(
        lambda: metric(controller.http_address, name, skew=skew) == 1, SECONDS, what=f"the agent counting as {skew}"
    )


@pytest.mark.parametrize("kind", ["a newer agent", "a newer controller", "an older agent"])
def test_neighbours_work_together(
    kind: str,
    host: VmHost,
    controller_process: Callable[..., ControllerProcess],
    kube: KubeApi,
    unique_name: Callable[[str], str],
) -> None:
    meeting = _meetings()[kind]
    proxy = VersionProxy(host.agent.address, meeting.requests, meeting.answers)
    proxy.unserved |= meeting.unserved
    with proxy.running():
        through = {"COCOON_NODE_CONTROLLER_AGENTS": f"{host.node}={proxy.address}"}
        controller = controller_process(host.agent, settings=through)
        node = cluster.wait_ready(kube, host.node)
        assert node["status"]["capacity"]["pods"] == "256"
        assert node["metadata"]["labels"][cluster.POOL] == "default"

        kept, gone = unique_name("kept"), unique_name("gone")
        owner = create_set(kube, kept, suspend=True, stash=host.node)
        kept_vm = _claimed_pod(host, f"{kept}-0", owner=owner)
        gone_vm = _claimed_pod(host, gone)
        kube.merge(pod_path(f"{kept}-0"), {"metadata": {"annotations": {KEEP: "true"}}})
        kube.delete(pod_path(f"{kept}-0"))
        kube.delete(pod_path(gone))
        wait_for(lambda: not host.has(gone_vm), SECONDS, what="the snapshot that was torn down being purged")
        wait_for(
            lambda: retention(host.agent.address, kept_vm)[0] in {"SEAT_RELEASE", meeting.retained_for},
            SECONDS,
            what="the flagged snapshot being kept",
        )
        assert host.has(kept_vm)
        kube.delete(set_path(kept))
        wait_for(lambda: not host.has(kept_vm), SECONDS, what="the copy of a set that is gone being purged")

        assert {"WatchNodeResources", "SyncOwners", "PurgeSnapshots", "ReleaseRetention"} <= proxy.seen.keys()
        _wait_counted(controller, meeting.skew)
        assert cluster.condition(kube.get(f"{cluster.NODES}/{host.node}"), "CocoonVersionSkew") == {}
        assert controller.process.running
    for log in (controller.process.log_path, host.agent.process.log_path):
        assert "Traceback" not in log.read_text()


def test_further_apart_is_told_and_goes_on(
    host: VmHost,
    controller_process: Callable[..., ControllerProcess],
    control_plane: ControlPlane,
    kube: KubeApi,
    unique_name: Callable[[str], str],
) -> None:
    """Two minor versions: condition, event, number, log and table say so; the work is done all the same."""

    def far_ahead(name: str, message: Any) -> None:  # noqa: ANN401 - a message of the next version
        for report in _reports(name, message):
            report.agent_version = minors_away(2)

    with VersionProxy(host.agent.address, answers=newer(next_version(), far_ahead)).running() as proxy:
        through = {"COCOON_NODE_CONTROLLER_AGENTS": f"{host.node}={proxy.address}"}
        controller = controller_process(host.agent, settings=through)
        node = cluster.wait_ready(kube, host.node)
        told = cluster.condition(node, "CocoonVersionSkew")
        assert (told["status"], told["reason"]) == ("True", "AgentTooNew")
        assert "Upgrade the controller" in told["message"]
        wait_for(
            lambda: "VersionSkew" in cluster.event_reasons(kube, host.node), SECONDS, what="the event about the skew"
        )
        _wait_counted(controller, "too_new")
        assert controller.process.log_path.read_text().count("agent of another version") == 1
        shown = run_command(control_plane.kubeconfig(), [host.agent], "nodes", "-o", "json")
        (row,) = [each for each in json.loads(shown) if each["name"] == host.node]
        assert row["agentVersion"] == minors_away(2)
        table = run_command(control_plane.kubeconfig(), [host.agent], "nodes", settings={"COLUMNS": "300"})
        (line,) = [line for line in table.splitlines() if line.startswith(f"{host.node} ")]
        assert "CocoonVersionSkew" in line
        assert minors_away(2) in line
        gone = unique_name("gone")
        vm = _claimed_pod(host, gone)
        kube.delete(pod_path(gone))
        wait_for(lambda: not host.has(vm), SECONDS, what="the snapshot that was torn down being purged")
