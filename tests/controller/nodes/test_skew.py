"""Versions of agents beside ours: what is silent, what people are told, and that nothing else changes."""

from __future__ import annotations

import pytest

from common.version import VERSION
from controller.nodes.model import ROLE_LABEL
from controller.nodes.skew import SKEW, Skew, skew_message, skew_of
from tests.controller.nodes.building import ModelCluster, ModelNode, report


def minors_away(minors: int) -> str:
    """A version this many minor versions from ours, with another patch."""
    major, minor, _ = VERSION.split(".")
    return f"{major}.{int(minor) + minors}.7"


@pytest.mark.parametrize(
    ("agent", "ours", "skew"),
    [
        ("1.4.0", "1.4.0", Skew.SAME),
        ("1.4.9", "1.4.0", Skew.SAME),
        ("1.4.0-rc.1+g12ab", "1.4.0", Skew.SAME),
        ("1.3.7", "1.4.0", Skew.OLDER),
        ("1.5.0", "1.4.2", Skew.NEWER),
        ("1.2.0", "1.4.0", Skew.TOO_OLD),
        ("1.6.0", "1.4.0", Skew.TOO_NEW),
        ("1.10.0", "1.9.0", Skew.NEWER),
        ("0.9.0", "1.0.0", Skew.TOO_OLD),
        ("2.4.0", "1.4.0", Skew.TOO_NEW),
        ("1.4", "1.4.0", Skew.SAME),
        ("", "1.4.0", Skew.UNKNOWN),
        ("1", "1.4.0", Skew.UNKNOWN),
        ("v1.4.0", "1.4.0", Skew.UNKNOWN),
        ("1.4\n.0", "1.4.0", Skew.UNKNOWN),
        ("1.4.0 \x1b[31m", "1.4.0", Skew.UNKNOWN),
        ("1.4.0" + "0" * 100, "1.4.0", Skew.UNKNOWN),
        ("9" * 500 + ".1", "1.4.0", Skew.UNKNOWN),
        ("\u0661.\u0664.\u0660", "1.4.0", Skew.UNKNOWN),
    ],
)
def test_how_far_two_versions_are_apart(agent: str, ours: str, skew: Skew) -> None:
    assert skew_of(agent, ours) is skew


@pytest.mark.parametrize("minors", [-1, 1])
def test_one_minor_version_apart_is_silent(minors: int) -> None:
    cluster = ModelCluster()
    cluster.converge(report())
    plans = cluster.converge(report(agent_version=minors_away(minors)))
    assert cluster.node is not None
    assert SKEW not in cluster.node.conditions
    assert cluster.node.values["nodeInfo:kubeletVersion"] == f"cocoon-node/{minors_away(minors)}"
    assert [event for plan in plans for event in plan.events] == []


@pytest.mark.parametrize(
    ("version", "reason", "remedy"),
    [(minors_away(2), "AgentTooNew", "Upgrade the controller"), ("999.0.0", "AgentTooNew", "Upgrade the controller")],
)
def test_further_apart_is_told_and_nothing_else_stops(version: str, reason: str, remedy: str) -> None:
    cluster = ModelCluster()
    cluster.converge(report())
    plans = cluster.converge(report(agent_version=version, capacity={**report().capacity, "cpu": "16"}))
    assert cluster.node is not None
    assert cluster.node.values["capacity:cpu"] == "16"
    told = cluster.node.conditions[SKEW]
    assert (told.status, told.reason) == ("True", reason)
    assert remedy in told.message
    assert version in told.message
    assert [event.reason for event in plans[0].events] == ["VersionSkew"]
    # Said once: the condition stays, the event does not come again with every report.
    again = cluster.converge(report(agent_version=version, revision=9, reserve_percent=3))
    assert [event for plan in again for event in plan.events] == []
    cluster.converge(report(agent_version=VERSION))
    assert SKEW not in cluster.node.conditions


@pytest.mark.parametrize(("skew", "behind"), [(Skew.TOO_OLD, "agent"), (Skew.TOO_NEW, "controller")])
def test_the_one_that_is_behind_is_the_one_to_upgrade(skew: Skew, behind: str) -> None:
    assert f"Upgrade the {behind}" in skew_message("1.4.0", skew, "1.9.0")


def test_adopted_nodes_are_told_about_too() -> None:
    """Their system information is not ours to write, so the condition is the only place."""
    node = ModelNode("host-1")
    node.update("virtual-kubelet", f"label:{ROLE_LABEL}", "")
    cluster = ModelCluster(node)
    cluster.converge(report(agent_version=minors_away(2)))
    assert node.conditions[SKEW].reason == "AgentTooNew"
    assert "nodeInfo:kubeletVersion" not in node.values
