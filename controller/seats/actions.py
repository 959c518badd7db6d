"""Does one step of a plan: one request to the API, the registry or the agents.

Why this exists: what is done here is the smallest part that can fail. Whatever fails leaves the set as it was after the
step before, and is planned anew by the caller; the keep flag alone may fail and be passed over.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec

from common.logging import fields
from controller.cocoon_keys import DISCARD, GENERATION, HIBERNATE, KEEP, SET_GROUP, SET_KIND, STASH, set_path
from controller.kube.client import KubeClient
from controller.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from controller.kube.events import EventRecorder, EventType, Regarding
from controller.kube.leadership import Leadership
from controller.kube.retry import ONCE
from controller.seats.metrics import FLAG_FAILURES, PODS_DELETED, SNAPSHOTS_MISSING, UNSCHEDULABLE, WAKES
from controller.seats.model import CocoonSet, Copies, ManifestAnswer, Pod, Reason, TagDeletion
from controller.seats.pods import main_pod
from controller.seats.status_writer import FIELD_MANAGER, StatusWriter
from controller.seats.steps import Do, Step
from controller.seats.watch import SeatWatch
from controller.seats.wire import PodItem, SetItem, pod_path, pods_path

log = logging.getLogger(__name__)

_FLAG_SECONDS = 2.0


class OutdatedError(Exception):
    """What the plan was made from is not so any more; plan again. `str()` says what."""


class TagError(KubeError):
    """The registry did not delete a tag, and may do so later."""

    default_reason = "TagNotDeleted"


class RegistryCalls(Protocol):
    """What the registry is asked; `controller.seats.registry.Registry` is one."""

    async def manifest(self, vm_name: str) -> ManifestAnswer:
        """Return whether the hibernate snapshot of a VM is there."""
        ...

    async def delete_tag(self, vm_name: str) -> TagDeletion:
        """Delete the tag of a VM's hibernate snapshot."""
        ...


class AgentCopies(Protocol):
    """The agents' copies; `controller.seats.copies.LocalCopies` is one."""

    async def holders(self, vm_name: str) -> Copies:
        """Return who holds a snapshot of the VM."""
        ...

    async def keep(self, vm_name: str, nodes: tuple[str, ...]) -> None:
        """Have them keep it without expiry."""
        ...

    async def forget_backup(self, vm_name: str) -> None:
        """Say that its backup is gone."""
        ...


class SeatActions:
    """Does steps. Every one raises KubeError, NotLeadingError, OutdatedError or TagError."""

    def __init__(
        self,
        client: KubeClient,
        watch: SeatWatch,
        leadership: Leadership,
        registry: RegistryCalls | None,
        copies: AgentCopies,
        events: EventRecorder | None = None,
    ) -> None:
        """Without a `registry` no step that needs one may be asked for."""
        self._client = client
        self._watch = watch
        self._leadership = leadership
        self.registry = registry
        self.copies = copies
        self._events = events
        self._status = StatusWriter(client, watch, self.say)
        self._decode_set = msgspec.json.Decoder(SetItem).decode
        self._decode_pod = msgspec.json.Decoder(PodItem).decode
        self._work: dict[Do, Callable[[CocoonSet, Step], Awaitable[None]]] = {
            Do.HIBERNATE: self._hibernate,
            Do.RESUME: self._resume,
            Do.STASH: self._stash,
            Do.FLAG: self._flag,
            Do.DELETE: self._delete,
            Do.DELETE_UNBOUND: self._delete_unbound,
            Do.CREATE: self._create,
            Do.CLEAR_STASH: self._clear_stash,
            Do.DROP_TAG: self._drop_tag,
            Do.KEEP_COPIES: self._keep_copies,
            Do.STATUS: self._status.write,
            Do.TELL: self._tell,
        }

    async def do(self, cs: CocoonSet, step: Step) -> None:
        """Do one step that changes something; only the leader may."""
        self._leadership.require()
        await self._work[step.do](cs, step)

    async def read_set(self, cs: CocoonSet) -> CocoonSet | None:
        """Read the set uncached; None when it is gone or another one by now."""
        try:
            item = self._decode_set(await self._client.get_bytes(set_path(cs.namespace, cs.name)))
        except NotFound as error:
            if error.object_name == cs.name:
                return None
            raise
        self._watch.wrote_set(item)
        return item.read() if item.metadata.uid == cs.uid else None

    async def read_pod(self, cs: CocoonSet) -> Pod | None:
        """Read the pod of the main pod's name uncached; None when there is none."""
        try:
            item = self._decode_pod(await self._client.get_bytes(pod_path(cs.namespace, cs.pod_name)))
        except NotFound as error:
            if error.object_name != cs.pod_name:
                raise
            self._watch.no_pod(cs)
            return None
        self._watch.wrote_pod(item)
        return self._watch.pod(item)

    async def _hibernate(self, cs: CocoonSet, step: Step) -> None:
        await self._annotate_pod(step, {HIBERNATE: "true", GENERATION: str(cs.generation)})

    async def _resume(self, cs: CocoonSet, step: Step) -> None:
        await self._annotate_pod(step, {HIBERNATE: None, KEEP: None, GENERATION: str(cs.generation)})

    async def _annotate_pod(self, step: Step, annotations: dict[str, str | None]) -> None:
        pod = _pod_of(step)
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        try:
            answer = await self._client.merge_patch(
                pod_path(pod.namespace, pod.name), body, field_manager=FIELD_MANAGER
            )
        except (NotFound, Conflict) as error:
            raise OutdatedError(str(error)) from error
        self._watch.wrote_pod(self._decode_pod(answer))

    async def _stash(self, cs: CocoonSet, step: Step) -> None:
        after = await self._annotate_set(cs, {STASH: step.node})
        if not after.suspended:
            raise OutdatedError("the set was woken")

    async def _clear_stash(self, cs: CocoonSet, step: Step) -> None:
        await self._annotate_set(cs, {STASH: None, DISCARD: None})
        if step.placement:
            WAKES.labels(step.placement).inc()

    async def _annotate_set(self, cs: CocoonSet, annotations: dict[str, str | None]) -> CocoonSet:
        body = {"metadata": {"uid": cs.uid, "annotations": annotations}}
        try:
            answer = await self._client.merge_patch(set_path(cs.namespace, cs.name), body, field_manager=FIELD_MANAGER)
        except (NotFound, Conflict) as error:
            raise OutdatedError(str(error)) from error
        item = self._decode_set(answer)
        self._watch.wrote_set(item)
        return item.read()

    async def _flag(self, cs: CocoonSet, step: Step) -> None:
        """Write the keep flag. Whatever keeps it from being written, the seat is freed all the same."""
        pod = _pod_of(step)
        body = {"metadata": {"uid": pod.uid, "annotations": {KEEP: "true"}}}
        try:
            async with asyncio.timeout(_FLAG_SECONDS):
                await self._client.merge_patch(
                    pod_path(pod.namespace, pod.name),
                    body,
                    field_manager=FIELD_MANAGER,
                    timeout_seconds=_FLAG_SECONDS,
                    retry=ONCE,
                )
        except Exception as error:
            if isinstance(error, NotFound) and error.object_name == pod.name:
                return  # It is gone already, and so is its seat.
            what = str(error) or f"no answer within {_FLAG_SECONDS:g} s"
            FLAG_FAILURES.inc()
            log.error(  # noqa: TRY400 - a sentence for people; the trace would say nothing more
                "the keep flag could not be written, the pod is deleted all the same",
                extra=fields(pod=f"{pod.namespace}/{pod.name}", uid=pod.uid, node=pod.node, error=what),
            )
            self.say(cs, "Warning", "KeepFlagFailed", f"pod {pod.name} on {pod.node}: {what}; the seat is freed")

    async def _delete(self, cs: CocoonSet, step: Step) -> None:
        pod = _pod_of(step)
        try:
            await self._client.delete(pod_path(pod.namespace, pod.name), uid=pod.uid)
        except Conflict:
            return  # Another pod has the name by now; it will be planned for.
        except NotFound:
            self._watch.deleted_pod(pod)
            return
        self._watch.deleted_pod(pod)
        PODS_DELETED.inc()
        log.info("seat freed", extra=fields(set=cs.key, pod=pod.name, uid=pod.uid, node=pod.node, why=step.why))

    async def _delete_unbound(self, cs: CocoonSet, step: Step) -> None:
        pod = _pod_of(step)
        path = pod_path(pod.namespace, pod.name)
        try:
            # Bound in this very moment, it has another version and a VM that is to hibernate first.
            await self._client.delete(path, uid=pod.uid, resource_version=pod.resource_version)
        except Conflict as error:
            raise OutdatedError(str(error)) from error
        except NotFound:
            pass
        self._watch.deleted_pod(pod)
        log.info("pod deleted that was never bound", extra=fields(set=cs.key, pod=pod.name, uid=pod.uid))

    async def _create(self, cs: CocoonSet, step: Step) -> None:
        whole = await self._whole_set(cs)
        pod = main_pod(whole, restores=step.restores, preferred_node=step.node)
        try:
            answer = await self._client.create(pods_path(cs.namespace), pod, field_manager=FIELD_MANAGER)
        except AlreadyExists:
            self._watch.created_pod(cs, None)
            return
        except KubeError as error:
            self.say(cs, "Warning", "WakeFailed", f"pod {cs.pod_name} could not be created: {error}")
            raise
        self._watch.created_pod(cs, self._decode_pod(answer))
        log.info(
            "main pod created",
            extra=fields(set=cs.key, restores=step.restores, preferred_node=step.node, why=step.why),
        )

    async def _whole_set(self, cs: CocoonSet) -> dict[str, Any]:
        """Return the set with its whole spec. Raises OutdatedError unless it is the same one and awake."""
        item = self._watch.set_item(cs.key)
        if item is None or item.metadata.uid != cs.uid or item.read().suspended:
            raise OutdatedError("the set is gone or suspended")
        metadata = item.metadata
        named = {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid}
        return {"metadata": named | {"generation": metadata.generation}, "spec": item.spec}

    async def _drop_tag(self, cs: CocoonSet, step: Step) -> None:
        if self.registry is None:
            raise TagError("no registry is configured")
        outcome = await self.registry.delete_tag(step.vm_name)
        if outcome is TagDeletion.FAILED:
            self.say(cs, "Warning", "HibernateTagNotDeleted", f"the tag of {step.vm_name} is deleted later")
            raise TagError(f"the hibernate tag of {step.vm_name} could not be deleted")
        if outcome is TagDeletion.KEPT:
            why = f"the registry deletes no tags; that of {step.vm_name} is stale and harmless"
            self.say(cs, "Normal", "HibernateTagKept", why)
            return
        await self.copies.forget_backup(step.vm_name)

    async def _keep_copies(self, _: CocoonSet, step: Step) -> None:
        await self.copies.keep(step.vm_name, step.nodes)

    async def _tell(self, cs: CocoonSet, step: Step) -> None:
        if step.event == "WakeNoCapacity":
            UNSCHEDULABLE.inc()
        if step.event == "HibernateSnapshotMissing" and cs.reason is not Reason.SNAPSHOT_MISSING:
            SNAPSHOTS_MISSING.inc()
        self.say(cs, "Warning" if step.warning else "Normal", step.event, step.why)

    def say(self, cs: CocoonSet, event_type: EventType, reason: str, note: str) -> None:
        """Send an Event about the set."""
        if self._events is not None:
            regarding = Regarding(SET_KIND, cs.name, cs.uid, cs.namespace, f"{SET_GROUP}/v1")
            self._events.emit(regarding, event_type, reason, note)


def _pod_of(step: Step) -> Pod:
    if step.pod is None:
        raise ValueError(f"a step that is about a pod has none: {step.do.name}")
    return step.pod
