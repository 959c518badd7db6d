"""The commands about snapshots: where a VM's are, why a pod's were kept or purged, and what would be decided now.

Why this exists: `controller.deletion.inspection` knows the answers, people want them in words; this turns the one into
the other and connects it to the settings.
"""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import click

from common.logging import printable
from controller.app import agent_sources, client_credentials, deletion_settings, open_client
from controller.config import Settings
from controller.deletion.inspection import Inspection, Pending, looking, release_braked
from controller.deletion.model import Decision, LocatedSnapshot


@contextlib.asynccontextmanager
async def _look(settings: Settings, wait_seconds: float) -> AsyncIterator[Inspection]:
    async with open_client(settings) as client, agent_sources(settings, client) as sources:
        chosen = deletion_settings(settings)
        async with looking(client, sources, client_credentials(settings), chosen, wait_seconds) as inspection:
            yield inspection


async def plan_snapshots(settings: Settings, wait_seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return what would be done about snapshots that nobody claims, as plain objects, and what could not be asked."""
    async with _look(settings, wait_seconds) as inspection:
        pending, problems = await inspection.pending(time.time())
        left = await inspection.brake_left(time.time())
    objects = [_pending_object(each) for each in pending]
    for number, counted in enumerate(each for each in objects if each["countsAgainstBrake"]):
        counted["braked"] = number >= left
    return objects, problems


async def release(settings: Settings) -> str:
    """Let the purges go that the leader's brake holds."""
    async with open_client(settings) as client:
        await release_braked(client, deletion_settings(settings))
    return "the leader lets go what its brake holds now"


async def locate(settings: Settings, vm_name: str, wait_seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return every snapshot of a VM as plain objects, and what could not be asked."""
    async with _look(settings, wait_seconds) as inspection:
        found, problems = await inspection.locate(vm_name)
    return [_located_object(node, each) for node, each in found], problems


async def why(settings: Settings, namespace: str, pod: str, wait_seconds: float) -> tuple[list[str], list[str]]:
    """Return sentences about what was decided for a pod and what would be now, and what could not be asked."""
    lines: list[str] = []
    async with _look(settings, wait_seconds) as inspection:
        lines += [f"{event.at} {event.reason}: {event.note}" for event in await inspection.events(namespace, pod)]
        problems: list[str] = []
        for vm_name in await inspection.vm_names(namespace, pod):
            told, unheard = await _why_here(inspection, vm_name)
            lines += told
            problems += [each for each in unheard if each not in problems]
    return lines, problems


async def _why_here(inspection: Inspection, vm_name: str) -> tuple[list[str], list[str]]:
    """Return sentences about a VM's snapshots and what would be decided about them, and what could not be asked."""
    lines: list[str] = []
    found, problems = await inspection.locate(vm_name)
    for node in sorted({node for node, _ in found}):
        here = [each for where, each in found if where == node]
        lines += [f"{node}: {each.found.name} is {each.state}{_kept(each)}" for each in here]
        decision = await inspection.decision_of(node, here, time.time())
        if decision is not None:
            lines.append(f"{node}: now: {_words(decision)}")
    if not found:
        lines.append(f"no agent that answers has a snapshot of {vm_name}")
    return lines, problems


def print_located(found: list[dict[str, Any]], output: str) -> None:
    """Print what `locate` found as `table`, `json` or `yaml`."""
    from common.printing import new_console, new_table, print_data

    if output != "table":
        print_data(found, output)
        return
    if not found:
        click.echo("no agent that answers has a snapshot of this VM")
        return
    table = new_table("NODE", "SNAPSHOT", "STATE", "KEPT FOR", "BYTES", "POD", "ID")
    for each in found:
        keys = ("node", "name", "state", "keptFor", "allocatedBytes", "pod", "id")
        table.add_row(*(printable(each[key]) or "-" for key in keys))
    new_console().print(table)


def _words(decision: Decision) -> str:
    return f"{decision.action.value}, because {decision.why} (row {decision.row})"


def _kept(located: LocatedSnapshot) -> str:
    kept = located.found.retained
    return f", kept for {kept.name}" if kept is not None else ""


def _pending_object(pending: Pending) -> dict[str, Any]:
    decision, owner = pending.decision, pending.subject.owner
    reasons = (decision.purge, decision.release, decision.retain)
    return {
        "kind": "SnapshotDecision",
        "node": pending.node,
        "pod": f"{owner.namespace}/{owner.pod_name}",
        "podUID": owner.pod_uid,
        "vm": owner.vm_name,
        "snapshots": [each.name for each in pending.subject.snapshots],
        "row": decision.row,
        "action": decision.action.name,
        "reason": next((reason.name for reason in reasons if reason is not None), ""),
        "why": decision.why,
        "countsAgainstBrake": decision.unseen and decision.purge is not None,
        "braked": False,
    }


def _located_object(node: str, located: LocatedSnapshot) -> dict[str, Any]:
    found = located.found
    return {
        "node": node,
        "name": found.name,
        "id": located.snapshot_id,
        "state": located.state,
        "pod": f"{found.owner.namespace}/{found.owner.pod_name}" if found.owner is not None else "",
        "podUID": found.owner.pod_uid if found.owner is not None else "",
        "keptFor": found.retained.name if found.retained is not None else "",
        "allocatedBytes": found.allocated_bytes,
        "problems": list(located.problems),
    }
