"""What people ask about snapshots: where a VM's are, why a pod's were kept or purged, what would be decided now.

Why this exists: the answers come from the live state by the same code that decides, never from a memory of the
controller. Nothing here sends a changing call; the one word a person can say to a running controller, that braked
purges may go, is an annotation of the leader's Lease.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import msgspec

from common.vm_names import pod_vm_name
from controller.agents.cache_client import AgentCallError
from controller.agents.channels import FleetChannels, ListeningRoster
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import AgentSource
from controller.agents.fleet import AgentFleet
from controller.deletion.assembly import RELEASE_ANNOTATION, DeletionParts, DeletionSettings
from controller.deletion.brake import Brake
from controller.deletion.brake_record import BrakeRecord
from controller.deletion.model import Action, Decision, LocatedSnapshot
from controller.deletion.refusals import NO_CACHE
from controller.deletion.subjects import Subject, subjects_of
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, NotFound

_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Pending:
    """What would be decided about one owner's snapshots on a node if a controller looked now."""

    node: str
    subject: Subject
    decision: Decision


@dataclass(frozen=True, slots=True)
class PodEvent:
    """An Event about a pod: when it was last seen, its reason, and what it says."""

    at: str
    reason: str
    note: str


class Inspection:
    """One look at the cluster and its agents. Made by `looking`."""

    def __init__(self, client: KubeClient, parts: DeletionParts, channels: FleetChannels) -> None:
        """Everything in it is running."""
        self._client = client
        self._parts = parts
        self._channels = channels

    async def pending(self, wall: float) -> tuple[list[Pending], list[str]]:
        """Return what would be done now, by node, and what could not be asked; `wall` is Unix seconds."""
        found: list[Pending] = []
        problems: list[str] = []
        for node in sorted(self._channels.nodes()):
            try:
                snapshots = await self._parts.calls.list_unclaimed(node)
                for subject in subjects_of(snapshots, {}, wall):
                    decision = await self._parts.settler.consider(node, subject)
                    if decision.action is not Action.NOTHING:
                        found.append(Pending(node, subject, decision))
            except (AgentCallError, KubeError) as error:
                if error.reason != NO_CACHE:
                    problems.append(f"{node}: {error}")
        return found, problems

    async def vm_names(self, namespace: str, pod_name: str) -> list[str]:
        """Return the names of a pod's VM: by its own name, by its annotation, and by what agents recorded of it."""
        names = [pod_vm_name(namespace, pod_name)]
        record = self._parts.pods.reflector.items.get(f"{namespace}/{pod_name}")
        if record is not None:
            names.append(record.vm_name)
        for node in sorted(self._channels.nodes()):
            with contextlib.suppress(AgentCallError):  # whoever looks for the snapshots meets it again and tells
                snapshots = await self._parts.calls.list_unclaimed(node)
                owners = [each.owner for each in snapshots if each.owner is not None]
                names += [each.vm_name for each in owners if (each.namespace, each.pod_name) == (namespace, pod_name)]
        return list(dict.fromkeys(names))

    async def brake_left(self, wall: float) -> int:
        """Return how many purges of unseen deletions the leader's brake would let go now. Raises KubeError."""
        chosen = self._parts.settings
        brake = Brake(chosen.brake_limit, chosen.brake_window_seconds)
        try:
            body = await self._client.get_bytes(_lease_path(chosen))
        except NotFound:
            return brake.left(0.0)
        annotations = msgspec.json.decode(body)["metadata"].get("annotations") or {}
        BrakeRecord(brake, _write_nothing, lambda: annotations, lambda: 0.0, lambda: wall).learn()
        return brake.left(0.0)

    async def locate(self, vm_name: str) -> tuple[list[tuple[str, LocatedSnapshot]], list[str]]:
        """Return every snapshot of a VM with its node, and what could not be asked."""
        found: list[tuple[str, LocatedSnapshot]] = []
        problems: list[str] = []
        for node in sorted(self._channels.nodes()):
            try:
                found += [(node, each) for each in await self._parts.calls.list_vm(node, vm_name)]
            except AgentCallError as error:
                if error.reason != NO_CACHE:
                    problems.append(f"{node}: {error}")
        return found, problems

    async def is_kept(self, node: str, vm_name: str) -> bool | None:
        """Return whether a node's agent keeps the hibernate snapshot of a VM; None when it does not say."""
        try:
            located = await self._parts.calls.list_vm(node, vm_name)
        except AgentCallError:
            return None
        return any(each.found.name == vm_name and each.state in ("RETAINED", "IN_USE") for each in located)

    async def decision_of(self, node: str, located: Sequence[LocatedSnapshot], wall: float) -> Decision | None:
        """Return what would be decided about snapshots of one VM on a node; None while a pod claims them."""
        free = [each.found for each in located if each.state in ("RETAINED", "UNCLAIMED", "INVALID")]
        for subject in subjects_of(free, {}, wall):
            return await self._parts.settler.consider(node, subject)
        return None

    async def events(self, namespace: str, pod_name: str) -> list[PodEvent]:
        """Return the Events about a pod of this name, oldest first. Raises KubeError."""
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        body = await self._client.get_bytes(path, {"fieldSelector": f"regarding.kind=Pod,regarding.name={pod_name}"})
        found = [_event(each) for each in msgspec.json.decode(body).get("items") or ()]
        return sorted((each for each in found if each is not None), key=lambda event: event.at)


@contextlib.asynccontextmanager
async def looking(
    client: KubeClient,
    sources: Sequence[AgentSource],
    credentials: ClientCredentials | None,
    settings: DeletionSettings,
    wait_seconds: float,
) -> AsyncIterator[Inspection]:
    """Connect to everything and wait until all have answered, at the latest for `wait_seconds`."""
    roster = ListeningRoster()
    fleet = AgentFleet(sources, roster, credentials)
    channels = FleetChannels(fleet, roster)
    parts = DeletionParts(client, channels, settings=replace(settings, audit_only=True))
    tasks = [asyncio.create_task(each) for each in (fleet.run(), parts.pods.run(), parts.sets.run())]
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                while not _is_complete(fleet, parts) and not any(task.done() for task in tasks):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
        for task in tasks:
            if task.done():
                task.result()
        yield Inspection(client, parts, channels)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def release_braked(client: KubeClient, settings: DeletionSettings) -> None:
    """Tell the leader that the purges its brake holds may go. Raises KubeError."""
    await client.merge_patch(
        _lease_path(settings), {"metadata": {"annotations": {RELEASE_ANNOTATION: uuid.uuid4().hex}}}
    )


def _lease_path(settings: DeletionSettings) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{settings.lease_namespace}/leases/{settings.lease_name}"


async def _write_nothing(key: str, value: str) -> None:  # noqa: ARG001 - see BrakeRecord
    raise ValueError("an inspection changes nothing")


def _is_complete(fleet: AgentFleet, parts: DeletionParts) -> bool:
    answered = all(source.answered or source.problem for source in fleet.sources)
    return answered and all(each.is_tried for each in fleet.connections) and not parts.unready_reasons()


def _event(item: dict[str, Any]) -> PodEvent | None:
    if item.get("reportingController") != "cocoon-node-controller":
        return None
    series = item.get("series") or {}
    at = series.get("lastObservedTime") or item.get("eventTime") or ""
    return PodEvent(str(at), str(item.get("reason", "")), str(item.get("note", "")))
