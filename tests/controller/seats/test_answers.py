"""What agents and the registry say: who holds a copy, whether a backup is seen, whether a cocoon-operator runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from common.snapshot_words import Owner, RetainOutcome, RetainReason
from controller.agents.cache_client import AgentUnreachableError
from controller.deletion.model import FoundSnapshot, LocatedSnapshot
from controller.seats.backups import RegistryBackups
from controller.seats.copies import LocalCopies
from controller.seats.model import Copies, ManifestAnswer, RegistryAnswer
from controller.seats.operator_guard import OPERATOR_LEASE, running_operator

VM = "vk-ns-web-0"
OWNER = Owner("uid", "ns", "web-0", VM, managed=True)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def located(state: str = "RETAINED", **found: Any) -> tuple[LocatedSnapshot, ...]:  # noqa: ANN401 - any field
    kept: dict[str, Any] = {"retained": RetainReason.SEAT_RELEASE, "owner": OWNER} | found
    return (LocatedSnapshot(FoundSnapshot(VM, VM, **kept), "id", state),)


class Agents:
    """Answers of agents by node, None for one that does not answer; `retained` are the retains sent."""

    def __init__(self, **answers: tuple[LocatedSnapshot, ...] | None) -> None:
        self.answers = answers
        self.retained: list[tuple[str, RetainReason, float | None, bool]] = []

    async def list_vm(self, node: str, vm_name: str) -> tuple[LocatedSnapshot, ...]:
        assert vm_name == VM
        answer = self.answers[node]
        if answer is None:
            raise AgentUnreachableError(node, "Unavailable", "")
        return answer

    async def retain(
        self,
        node: str,
        owner: Owner,
        reason: RetainReason,
        ttl_seconds: float | None,
        *,
        backup_verified: bool = False,
    ) -> tuple[RetainOutcome, int]:
        assert owner == OWNER
        self.retained.append((node, reason, ttl_seconds, backup_verified))
        return RetainOutcome.RETAINED, 1

    def copies(self, *, all_tried: bool = True) -> LocalCopies:
        return LocalCopies(self, lambda: self.answers, lambda: all_tried, lambda: 1000.0)


async def test_whoever_answers_and_has_one_holds_a_copy() -> None:
    agents = Agents(a=located(), b=(), c=None, d=located("PURGING"), e=located("INVALID"))
    assert await agents.copies().holders(VM) == Copies(("a", "e"))
    assert not (await agents.copies(all_tried=False).holders(VM)).complete


async def test_copies_of_a_lost_snapshot_are_kept_without_expiry() -> None:
    agents = Agents(
        a=located(),
        b=located("RETAINED", retained=RetainReason.DISRUPTION, expires_at=2000.0),
        c=located("UNCLAIMED", retained=None),
        d=located("UNCLAIMED", retained=None, owner=None),
    )
    await agents.copies().keep(VM, ("a", "b", "c", "d"))
    kept = RetainReason.SEAT_RELEASE
    assert agents.retained == [("b", kept, None, False), ("c", kept, None, False)]


async def test_a_backup_that_is_gone_is_told_and_no_promise_gets_longer() -> None:
    agents = Agents(
        a=located(backup_verified=True),
        b=located(backup_verified=False),
        c=located(retained=RetainReason.DISRUPTION, expires_at=1500.0, backup_verified=True),
    )
    await agents.copies().forget_backup(VM)
    assert agents.retained == [
        ("a", RetainReason.SEAT_RELEASE, None, False),
        ("c", RetainReason.DISRUPTION, 500.0, False),
    ]


class SlowRegistry:
    """Answers `answer`, or never."""

    def __init__(self, answer: RegistryAnswer | None) -> None:
        self.answer = answer
        self.asked = 0

    async def manifest(self, vm_name: str) -> ManifestAnswer:
        assert vm_name == VM
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        assert self.answer is not None
        return ManifestAnswer(self.answer)


@pytest.mark.parametrize(
    ("answer", "seen"),
    [(RegistryAnswer.PRESENT, True), (RegistryAnswer.ABSENT, False), (RegistryAnswer.UNKNOWN, False), (None, False)],
)
async def test_a_backup_is_what_is_seen_soon(answer: RegistryAnswer | None, seen: bool) -> None:
    assert await RegistryBackups(SlowRegistry(answer)).seen(VM) is seen


async def test_sleeping_vms_are_asked_about_once_an_hour() -> None:
    now, registry = [0.0], SlowRegistry(RegistryAnswer.ABSENT)
    backups = RegistryBackups(registry, lambda: now[0])
    assert not await backups.still(VM, said=False)
    registry.answer = RegistryAnswer.PRESENT
    assert not await backups.still(VM, said=False)
    now[0] += 61
    assert await backups.still(VM, said=False)
    registry.answer = RegistryAnswer.ABSENT
    now[0] += 3599
    assert await backups.still(VM, said=True)
    assert registry.asked == 2
    now[0] += 2
    assert not await backups.still(VM, said=True)


async def test_a_registry_that_does_not_say_changes_nothing() -> None:
    now = [0.0]
    backups = RegistryBackups(SlowRegistry(RegistryAnswer.UNKNOWN), lambda: now[0])
    for said in (True, False):
        now[0] += 4000
        assert await backups.still(VM, said=said) is said


class Leases:
    """The API's answers about the operator's Lease, one after the other."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.answers = list(answers)

    async def get_bytes(self, path: str, query: Mapping[str, str]) -> bytes:
        assert path.endswith("/leases")
        assert query == {"fieldSelector": f"metadata.name={OPERATOR_LEASE}"}
        return json.dumps({"metadata": {}, "items": self.answers.pop(0)}).encode()


def lease(holder: str | None = "one", age_seconds: float = 1, version: str = "5") -> list[dict[str, Any]]:
    renewed = (NOW - timedelta(seconds=age_seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    metadata = {"name": OPERATOR_LEASE, "namespace": "cocoon-system", "uid": "u", "resourceVersion": version}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    return [{"metadata": metadata, "spec": spec}]


@pytest.mark.parametrize(
    ("answers", "runs"),
    [
        ([[]], False),
        ([lease()], True),
        ([lease(holder="")], False),
        ([lease(holder=None)], False),
        ([lease(age_seconds=-10)], True),
        ([lease(age_seconds=100), lease(age_seconds=100)], False),
        ([lease(age_seconds=3600), lease(age_seconds=3600, version="6")], True),
        ([lease(age_seconds=100), []], False),
    ],
)
async def test_a_lease_that_is_held_and_renewed_says_that_an_operator_runs(
    answers: list[list[dict[str, Any]]], runs: bool
) -> None:
    found = await running_operator(Leases(*answers), lambda: NOW, 0.0)  # type: ignore[arg-type]  # one method is asked
    assert bool(found) is runs
    if runs:
        assert "cocoon-system/cocoon-operator" in found
