"""The commands about seats, and starting beside a cocoon-operator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from devenv.errors import DevenvError
from devenv.kube_api import KubeApi
from tests.support.seat_place import SeatPlace, until
from tests.support.snapshot_calls import state

_PROGRAM = Path(sys.executable).parent / "cocoon-node-controller"
_LEASE = "cocoon-operator.cocoonset.cocoonstack.io"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def ask(seats: SeatPlace, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command against the place's cluster and agents."""
    agents = ",".join(host.agent.endpoint for host in seats.hosts)
    options = ["--kubeconfig", str(seats.plane.kubeconfig("controller")), "--agents", agents]
    return subprocess.run([_PROGRAM, *words, *options], capture_output=True, text=True, check=False)


def test_sets_are_put_to_sleep_shown_and_woken(seats: SeatPlace, unique_name: Callable[[str], str]) -> None:
    host = seats.add_host(unique_name("host"))
    seats.controller()
    name, other = unique_name("set"), unique_name("set")
    seats.run(name)
    seats.run(other)
    answer = ask(seats, "seats", "suspend", f"default/{name}")
    assert (answer.returncode, answer.stdout) == (0, f"CocoonSet default/{name}: to be suspended\n"), answer.stderr
    seats.wait_phase(name, "Suspended")
    until(lambda: state(host.agent.address, f"vk-default-{name}-0") == "RETAINED", "the copy being kept")
    shown = {each["name"]: each for each in json.loads(ask(seats, "seats", "-o", "json").stdout)}
    slept = shown[name]
    assert (slept["phase"], slept["holdsSeat"], slept["node"], slept["snapshotKept"]) == (
        "Suspended",
        False,
        host.node,
        True,
    )
    assert slept["since"]
    assert (shown[other]["phase"], shown[other]["holdsSeat"], shown[other]["node"]) == ("Running", True, host.node)
    table = ask(seats, "seats").stdout
    row = next(line.split() for line in table.splitlines() if line.startswith(f"default/{name} "))
    assert row[1:5] == ["Suspended", "free", host.node, "yes"]
    assert ask(seats, "seats", "wake", f"default/{name}").returncode == 0
    seats.wait_reason(name, "Running")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["seats", "wake", "default/none"], 1, "there is no CocoonSet default/none"),
        (["seats", "wake", "none"], 2, "must be NAMESPACE/NAME"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    seats: SeatPlace, unique_name: Callable[[str], str], words: Sequence[str], status: int, said: str
) -> None:
    seats.add_host(unique_name("host"))
    answer = ask(seats, *words)
    assert answer.returncode == status
    assert said in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.fixture
def operator_lease(kube: KubeApi) -> Iterator[str]:
    """The Lease of a cocoon-operator that runs."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "operator-1", "leaseDurationSeconds": 60, "renewTime": now}
    kube.create(_LEASES, {"metadata": {"name": _LEASE}, "spec": spec})
    yield _LEASE
    kube.discard(f"{_LEASES}/{_LEASE}")


def test_it_does_not_start_beside_a_cocoon_operator_unless_it_is_told_to(
    seats: SeatPlace, operator_lease: str, unique_name: Callable[[str], str]
) -> None:
    seats.add_host(unique_name("host"))
    with pytest.raises(DevenvError, match="a cocoon-operator runs") as refused:
        seats.controller()
    assert "--force-seat-release" in str(refused.value)
    seats.controller({"COCOON_NODE_CONTROLLER_FORCE_SEAT_RELEASE": "true"})
    name = unique_name("set")
    seats.create_set(name, suspend=True)
    seats.wait_phase(name, "Suspended")
