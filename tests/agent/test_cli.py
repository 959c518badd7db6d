"""The commands as a user runs them: what they print, and with which exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from common.quantity import parse_quantity
from common.version import VERSION

Run = Callable[..., subprocess.CompletedProcess[str]]
Host = Callable[[str], dict[str, str]]


def meminfo_bytes(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    raise AssertionError(f"{key} is not in /proc/meminfo")


def test_probe_says_what_this_machine_has(host_memory: None, run_agent: Run, tmp_path: Path) -> None:
    """F1, F2: `nproc --all`, MemTotal and statvfs, whatever this process may use of them."""
    done = run_agent("probe", "-o", "json", "--root-dir", str(tmp_path), VK_NODE_NAME="host-1", VK_NODE_IP="192.0.2.1")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    processors = int(subprocess.run(["nproc", "--all"], capture_output=True, text=True, check=True).stdout)
    space = os.statvfs(tmp_path)
    assert report["capacity"]["cpu"] == str(processors)
    assert parse_quantity(report["capacity"]["memory"]).bytes() == meminfo_bytes("MemTotal")
    assert parse_quantity(report["capacity"]["ephemeral-storage"]).bytes() == space.f_blocks * space.f_frsize
    assert report["capacity"]["pods"] == "256"
    assert parse_quantity(report["allocatable"]["memory"]).bytes() == meminfo_bytes("MemTotal") * 80 // 100


def test_probe_is_not_shrunk_by_affinity(run_agent: Run, fixture_host: Host, tmp_path: Path) -> None:
    """F1: a process that may run on one CPU only publishes all of them."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        done = run_agent("probe", "-o", "json", **fixture_host("container-with-quota"))
    finally:
        os.sched_setaffinity(0, allowed)
    assert json.loads(done.stdout)["capacity"]["cpu"] == "32"


@pytest.mark.parametrize(
    ("host", "resource", "capacity", "allocatable"),
    [
        ("thirty-two-cpus", "cpu", "32", "25"),
        ("thirty-two-cpus", "memory", "131927504Ki", "108075011276"),
        ("container-with-quota", "memory", "131927504Ki", "108075011276"),
        ("numa-hugepages", "hugepages-1Gi", "4Gi", "3435973836"),
        ("offline-cpus", "cpu", "9", "7"),
        ("arm64", "hugepages-512Mi", "1Gi", "858993459"),
    ],
)
def test_probe_of_other_hosts(
    run_agent: Run, fixture_host: Host, host: str, resource: str, capacity: str, allocatable: str
) -> None:
    """F2, F3: fixture trees of other machines run through the real command."""
    done = run_agent("probe", "-o", "json", **fixture_host(host))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["capacity"][resource], report["allocatable"][resource]) == (capacity, allocatable)
    assert ("hugepages-2Mi" in report["capacity"]) == (host in {"arm64", "offline-cpus"})


def test_yaml_says_what_json_says(run_agent: Run, fixture_host: Host) -> None:
    host = fixture_host("arm64") | {"VK_NODE_STORAGE": "1Ti", "VK_NODE_POOL": "on", "VK_PROVIDER_ID": "a:b#c"}
    as_json = json.loads(run_agent("probe", "-o", "json", **host).stdout)
    as_yaml = yaml.safe_load(run_agent("probe", "-o", "yaml", **host).stdout)
    for report in (as_json, as_yaml):
        del report["observeTime"]
        for entry in (*report["resources"], *report["conditions"]):
            entry.pop("observeTime", None)
            entry.pop("lastTransitionTime", None)
    assert as_yaml == as_json
    assert as_yaml["labels"]["cocoonstack.io/pool"] == "on"


def test_the_table_shows_each_resource(run_agent: Run, fixture_host: Host) -> None:
    lines = run_agent("probe", **fixture_host("default-1gi-pages")).stdout.splitlines()
    assert lines[0].startswith("host-1")
    rows = {line.split()[0]: line.split()[1:3] for line in lines[2:7]}
    assert rows["cpu"] == ["8", "6"]
    assert rows["hugepages-1Gi"] == ["4Gi", "3435973836"]


def test_explain_adds_up(run_agent: Run, fixture_host: Host) -> None:
    done = run_agent("explain", "memory", **fixture_host("thirty-two-cpus"), VK_RESERVE_PERCENT="20")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0][0] == "memory"
    assert lines[0][-1].endswith("/proc/meminfo")
    values = {line[0]: int(line[2]) for line in lines[2:]}
    assert values["raw"] + values["RESERVE"] == values["allocatable"] == 108075011276
    assert "cpu" not in values


def test_explain_tells_what_is_sold_twice(run_agent: Run, fixture_host: Host) -> None:
    done = run_agent("explain", **fixture_host("default-1gi-pages"), VK_RESERVE_PERCENT="0")
    assert "Huge pages exceed what is held back of memory by 4Gi" in done.stdout


def test_explain_of_an_unknown_resource(run_agent: Run, fixture_host: Host) -> None:
    done = run_agent("explain", "gpu\x1b[31m", **fixture_host("no-hugepages"))
    assert done.returncode == 2
    assert done.stderr == ('error: resource "gpu\\x1b[31m": must be one of cpu, ephemeral-storage, memory, pods\n')


@pytest.mark.parametrize("command", ["serve", "probe", "explain"])
def test_a_missing_root_directory_is_an_error(run_agent: Run, fixture_host: Host, command: str) -> None:
    """F5: it names the variable, the value and the rule."""
    done = run_agent(command, **(fixture_host("arm64") | {"COCOON_ROOT_DIR": "/no/such/dir"}))
    assert done.returncode == 2
    assert done.stderr.startswith('error: COCOON_ROOT_DIR="/no/such/dir": must be an existing directory')
    assert done.stdout == ""


@pytest.mark.parametrize("command", [["serve"], ["probe"], ["explain"], ["config", "check"], ["config", "show"]])
def test_every_command_refuses_bad_settings_with_all_of_them(run_agent: Run, command: list[str]) -> None:
    """F7, F8: all problems at once, one line each, exit status 2, no traceback."""
    done = run_agent(*command, VK_NODE_CPU="NaN", VK_RESERVE_PERCENT=" 20", COCOON_NODE_LISTEN="0.0.0.0:7443")
    assert done.returncode == 2
    assert [line.split("=")[0] for line in done.stderr.splitlines()] == [
        "error: VK_NODE_CPU",
        "error: VK_RESERVE_PERCENT",
        "error: COCOON_NODE_LISTEN",
    ]


def test_config_show_tells_values_and_sources(run_agent: Run, tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    file.write_text("VK_NODE_POOL=blue\n")
    done = run_agent(
        "config", "show", "-o", "json", "--config", str(file), "--reserve-percent", "30", VK_NODE_PODS="12"
    )
    shown = {entry["variable"]: (entry["value"], entry["source"]) for entry in json.loads(done.stdout)}
    assert shown["VK_NODE_POOL"] == ("blue", f"{file}:1")
    assert shown["VK_NODE_PODS"] == ("12", "environment")
    assert shown["VK_RESERVE_PERCENT"] == ("30", "command line, --reserve-percent")
    assert shown["VK_NODE_CPU"] == (None, "default")
    assert "VK_NODE_POOL" in run_agent("config", "show").stdout


def test_config_check_warns_of_misspelt_settings(run_agent: Run) -> None:
    done = run_agent("config", "check", VK_NODE_NAME="n", COCOON_NODE_LISTN="x")
    assert (done.returncode, done.stdout) == (0, "settings are valid\n")
    assert done.stderr == (
        "warning: COCOON_NODE_LISTN (environment): no such setting; did you mean COCOON_NODE_LISTEN?\n"
    )


def test_version(run_agent: Run) -> None:
    assert run_agent("--version").stdout == f"{VERSION}\n"


def test_serve_starts_without_what_only_other_commands_need() -> None:
    """The agent's start and memory are part of what operators pay on every host."""
    code = (
        "import sys, agent.app, agent.cli\n"
        "heavy = {'rich', 'psutil', 'kubernetes', 'prometheus_client', 'google.rpc', 'yaml', 'httpx'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
