"""Seat release put together where it is asked for, and kept out of a start where it is not.

Why this exists: few controllers release seats or know a registry, and what that takes would be a twelfth of every
start. So what the functions here need is imported in them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import controller.seats.metrics  # noqa: F401 - the metrics page has the same lines with and without seats
from common.program import StartError
from controller.agents.channels import FleetChannels
from controller.agents.fleet import AgentFleet
from controller.config import Settings
from controller.deletion.assembly import DeletionParts
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError
from controller.kube.events import EventRecorder

if TYPE_CHECKING:
    from controller.seats.assembly import SeatParts
    from controller.seats.backups import RegistryBackups
    from controller.seats.registry import Registry


@contextlib.asynccontextmanager
async def open_registry(settings: Settings) -> "AsyncIterator[Registry | None]":
    """A client of the registry that the settings name, None without one. Raises `StartError`."""
    if settings.registry is None:
        yield None
        return
    from controller.seats.registry import Registry
    from controller.seats.registry_address import RegistryConfigError

    try:
        registry = await asyncio.to_thread(
            Registry,
            settings.registry,
            docker_config_file=settings.registry_docker_config_file,
            ca_file=settings.registry_ca_file,
        )
    except RegistryConfigError as error:
        raise StartError(f"registry: {error}", status=2) from None
    try:
        yield registry
    finally:
        await registry.aclose()


async def refuse_beside_operator(settings: Settings, client: KubeClient) -> None:
    """Raise `StartError` when seats are to be released and a cocoon-operator does that already."""
    if not settings.seat_release or settings.force_seat_release:
        return
    from controller.seats.operator_guard import running_operator

    try:
        operator = await running_operator(client)
    except KubeError as error:
        raise StartError(f"--seat-release: whether a cocoon-operator runs cannot be read: {error}") from None
    if operator:
        advice = "leave --seat-release off, stop it, or give --force-seat-release"
        raise StartError(f"--seat-release: a cocoon-operator runs ({operator}), which releases seats itself; {advice}")


def backups_in(registry: "Registry | None") -> "RegistryBackups | None":
    """What pod deletion asks about copies in the registry, None without one."""
    if registry is None:
        return None
    from controller.seats.backups import RegistryBackups

    return RegistryBackups(registry)


def make_seat_parts(
    settings: Settings,
    client: KubeClient,
    registry: "Registry | None",
    deletion: DeletionParts,
    channels: FleetChannels,
    fleet: AgentFleet,
    events: EventRecorder,
) -> "SeatParts | None":
    """The parts that free and take the seats of suspended VMs, None where that is not asked for."""
    if not settings.seat_release:
        return None
    from controller.seats.assembly import SeatParts, SeatSettings

    return SeatParts(
        client,
        deletion.elector.leadership,
        registry,
        deletion.calls,
        channels.nodes,
        fleet.all_tried,
        events=events,
        settings=SeatSettings(forced=settings.force_seat_release),
        sets_served=lambda: deletion.sets.is_served,
    )
