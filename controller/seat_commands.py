"""The commands about seats: which sets sleep and where their snapshots are, and putting one to sleep or waking it.

Why this exists: the state of a seat is spread over the set, its pod and an agent; people want it in one line. Waking
and suspending only change what the set asks for; the leader does the rest.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from common.logging import printable
from common.program import StartError
from controller.app import agent_sources, client_credentials, deletion_settings, open_client
from controller.cocoon_keys import PODS_OF_SETS, SETS_API, set_path
from controller.config import Settings
from controller.deletion.inspection import looking
from controller.kube.client import KubeClient
from controller.kube.errors import NotFound
from controller.seats.model import RELEASED_CONDITION, CocoonSet
from controller.seats.plan import is_ours
from controller.seats.wire import PodItem, SetItem

_AT_ONCE = 32


@dataclass(slots=True)
class Seat:
    """One set. `node` is where its pod is bound or, without one, where it hibernated; `kept` is None when unknown."""

    cocoon_set: CocoonSet
    node: str
    since: str
    holds_seat: bool
    kept: bool | None = None


async def list_seats(settings: Settings, wait_seconds: float) -> list[Seat]:
    """Return every set whose seat this controller keeps, by namespace and name."""
    async with open_client(settings) as client:
        seats = await _read(client)
        async with agent_sources(settings, client) as sources:
            if sources:
                chosen = deletion_settings(settings)
                credentials = client_credentials(settings)
                async with looking(client, sources, credentials, chosen, wait_seconds) as inspection:
                    slots = asyncio.Semaphore(_AT_ONCE)

                    async def ask(seat: Seat) -> None:
                        async with slots:
                            seat.kept = await inspection.is_kept(seat.node, seat.cocoon_set.vm_name)

                    await asyncio.gather(*(ask(seat) for seat in seats if seat.node))
    return seats


async def set_suspended(settings: Settings, namespace: str, name: str, *, suspended: bool) -> str:
    """Ask for a set to be suspended or woken; return what was done, for people. Raises `StartError`."""
    async with open_client(settings) as client:
        try:
            await client.merge_patch(set_path(namespace, name), {"spec": {"suspend": suspended}})
        except NotFound as error:
            if error.object_name == name:
                raise StartError(f"there is no CocoonSet {namespace}/{name}") from None
            raise StartError("the API does not serve CocoonSets") from None
    return f"CocoonSet {namespace}/{name}: {'to be suspended' if suspended else 'to be woken'}"


def print_seats(seats: list[Seat], output: str) -> None:
    """Print them as `table`, `json` or `yaml`."""
    from common.printing import new_console, new_table, print_data

    if output != "table":
        print_data([_object(seat) for seat in seats], output)
        return
    if not seats:
        click.echo("no CocoonSet whose seat is released here")
        return
    table = new_table("SET", "PHASE", "SEAT", "NODE", "SNAPSHOT KEPT", "SINCE")
    now = datetime.now(UTC)
    for seat in seats:
        kept = "?" if seat.kept is None else "yes" if seat.kept else "no"
        cells = (
            seat.cocoon_set.key,
            seat.cocoon_set.phase.value or "-",
            "held" if seat.holds_seat else "free",
            seat.node or "-",
            kept if seat.node else "-",
            _age(seat.since, now),
        )
        table.add_row(*(printable(cell) for cell in cells))
    new_console().print(table)


async def _read(client: KubeClient) -> list[Seat]:
    try:
        items = await client.list_objects(f"{SETS_API}/cocoonsets", SetItem)
    except NotFound:
        raise StartError("the API does not serve CocoonSets") from None
    pods = {}
    for found in await client.list_objects("/api/v1/pods", PodItem, PODS_OF_SETS):
        each = found.read()
        pods[each.namespace, each.name] = each
    seats = []
    for item in items:
        cs = item.read()
        if not is_ours(cs):
            continue
        pod = pods.get((cs.namespace, cs.pod_name))
        node = pod.node if pod is not None and pod.node else cs.stash
        since = next(
            (c.get("lastTransitionTime") for c in item.conditions() if c.get("type") == RELEASED_CONDITION), ""
        )
        seats.append(Seat(cs, node, str(since or ""), holds_seat=pod is not None and not pod.ended))
    return sorted(seats, key=lambda seat: (seat.cocoon_set.namespace, seat.cocoon_set.name))


def _object(seat: Seat) -> dict[str, Any]:
    cs = seat.cocoon_set
    condition = cs.condition(RELEASED_CONDITION)
    return {
        "namespace": cs.namespace,
        "name": cs.name,
        "suspend": cs.suspended,
        "phase": cs.phase.value,
        "holdsSeat": seat.holds_seat,
        "node": seat.node,
        "snapshotKept": seat.kept,
        "since": seat.since,
        "reason": condition.reason if condition is not None else "",
        "message": condition.message if condition is not None else "",
    }


def _age(since: str, now: datetime) -> str:
    try:
        seconds = int((now - datetime.fromisoformat(since)).total_seconds())
    except ValueError:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{max(0, seconds)}s"
