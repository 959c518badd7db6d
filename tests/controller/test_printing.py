"""The fleet as people see it."""

import json

import pytest

from controller.commands import FleetNode
from controller.nodes.model import LiveCondition, LiveNode
from controller.printing import print_nodes


def _table(capsys: pytest.CaptureFixture[str], live: LiveNode) -> dict[str, str]:
    print_nodes([FleetNode(live, None)], "table")
    head, row = capsys.readouterr().out.splitlines()
    starts = [head.index(name) for name in head.split()]
    ends = [*starts[1:], None]
    return {name: row[start:end].strip() for name, start, end in zip(head.split(), starts, ends, strict=True)}


@pytest.mark.parametrize(
    ("conditions", "notice"),
    [
        ({"Ready": "True", "CocoonAgentReachable": "True", "CocoonSnapshotCacheReady": "True"}, "-"),
        ({"Ready": "False", "CocoonAgentReachable": "False"}, "-"),
        ({"CocoonSnapshotCacheReady": "False"}, "CocoonSnapshotCacheReady=False"),
        (
            {"DiskPressure": "True", "CocoonSnapshotCacheReady": "Unknown"},
            "DiskPressure, CocoonSnapshotCacheReady=Unknown",
        ),
        ({"CocoonProbeFailed": "True", "DiskPressure": "False"}, "CocoonProbeFailed"),
    ],
)
def test_what_is_not_as_it_should_be_is_noticed(
    capsys: pytest.CaptureFixture[str], conditions: dict[str, str], notice: str
) -> None:
    live = LiveNode(
        "host-1", conditions=tuple(LiveCondition(type_, status, "", "") for type_, status in conditions.items())
    )
    assert _table(capsys, live)["NOTICE"] == notice


@pytest.mark.parametrize(
    ("allocatable", "capacity", "shown"),
    [
        ("20221201612", "24684084Ki", "18.8/23.5Gi"),
        ("0", "8Gi", "0.0/8.0Gi"),
        ("nonsense", "8Gi", "nonsense/8Gi"),
    ],
)
def test_bytes_are_shown_in_one_unit(
    capsys: pytest.CaptureFixture[str], allocatable: str, capacity: str, shown: str
) -> None:
    live = LiveNode("host-1", allocatable={"memory": allocatable}, capacity={"memory": capacity})
    row = _table(capsys, live)
    assert row["MEMORY"] == shown
    assert row["STORAGE"] == "-/-"


def test_rows_stay_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "40")
    live = LiveNode("host-1", conditions=(LiveCondition("CocoonMemoryOvercommitted", "True"),))
    print_nodes([FleetNode(live, None)], "table")
    head, row = capsys.readouterr().out.splitlines()
    assert "NOTICE" in head
    assert "CocoonMemoryOvercommitted" in row


def test_huge_pages_have_a_column_only_where_there_are_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert "HUGEPAGES" not in _table(capsys, LiveNode("host-1", capacity={"cpu": "2"}))
    pages = {"hugepages-2Mi": "8Gi"}
    assert _table(capsys, LiveNode("host-1", capacity=pages, allocatable=pages))["HUGEPAGES"] == "2Mi 8.0/8.0Gi"


def test_the_agents_version_is_shown_where_we_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    ours = LiveNode("host-1", node_info={"kubeletVersion": "cocoon-node/0.3.1"})
    theirs = LiveNode("host-2", node_info={"kubeletVersion": "v1.36.3-vk"})
    assert _table(capsys, ours)["VERSION"] == "0.3.1"
    assert _table(capsys, theirs)["VERSION"] == "-"
    print_nodes([FleetNode(ours, None), FleetNode(theirs, None)], "json")
    shown = json.loads(capsys.readouterr().out)
    assert [each.get("agentVersion") for each in shown] == ["0.3.1", None]
