"""The few keys of sets, pods and CocoonHibernations that seat release reads, and what they mean.

Why this exists: people and other programs write these objects, and may write anything into an annotation. What is not
of the kind it should be counts as unset; nothing makes a whole list unreadable.
"""

from typing import Any, Final
from urllib.parse import quote

import msgspec

from common.vm_names import pod_vm_name
from controller.cocoon_keys import DISCARD, GENERATION, HIBERNATE, KEEP, RESTORE, STASH, VM_ID, VM_NAME, VM_PREFIX
from controller.deletion.pod_wire import WireContainerStatus, WireOwnerReference, is_finished, is_running, set_of
from controller.deletion.words import is_true
from controller.seats.model import (
    MISSING_CONDITION,
    RELEASED_CONDITION,
    Agent,
    CocoonSet,
    Condition,
    Lifecycle,
    Phase,
    Pod,
)

_OURS: Final = (RELEASED_CONDITION, MISSING_CONDITION)


def pods_path(namespace: str) -> str:
    """Return the path of a namespace's pods."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"


def pod_path(namespace: str, name: str) -> str:
    """Return the path of a pod."""
    return f"{pods_path(namespace)}/{quote(name, safe='')}"


class ItemMetadata(msgspec.Struct, gc=False, rename="camel"):
    """Metadata of any of them."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, Any] | None = None
    owner_references: list[WireOwnerReference] | None = None

    def text(self, key: str) -> str:
        """Return an annotation, empty when it is unset or no text."""
        value = (self.annotations or {}).get(key)
        return value if isinstance(value, str) else ""

    def is_true(self, key: str) -> bool:
        """Whether an annotation is `"true"`, the only true there is."""
        return is_true(self.text(key))

    def number(self, key: str) -> int:
        """Return an annotation that is a whole number, -1 for anything else."""
        text = self.text(key)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1


class SetItem(msgspec.Struct, gc=False):
    """One CocoonSet."""

    metadata: ItemMetadata
    spec: Any = None
    status: Any = None

    def read(self) -> CocoonSet:
        """Return the set as plans ask about it."""
        metadata, spec, status = self.metadata, _table(self.spec), _table(self.status)
        agent, observed = _table(spec.get("agent")), status.get("observedGeneration")
        return CocoonSet(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            generation=metadata.generation,
            suspended=spec.get("suspend") is True,
            releases=spec.get("hibernatePolicy") == "release",
            main_only=not agent.get("replicas") and not spec.get("toolboxes"),
            deleting=metadata.deletion_timestamp is not None,
            stash=metadata.text(STASH),
            discard=metadata.is_true(DISCARD),
            phase=_phase(status.get("phase")),
            observed_generation=observed if isinstance(observed, int) else 0,
            agents=tuple(_agent(each) for each in _tables(status.get("agents"))),
            conditions=tuple(_condition(each) for each in self.conditions() if each.get("type") in _OURS),
        )

    def conditions(self) -> list[dict[str, Any]]:
        """Return all conditions, others' too, as they stand in the status."""
        return _tables(_table(self.status).get("conditions"))


class _PodSpec(msgspec.Struct, gc=False, rename="camel"):
    node_name: str | None = None


class _PodCondition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _PodStatus(msgspec.Struct, gc=False, rename="camel"):
    phase: str | None = None
    conditions: list[_PodCondition] | None = None
    container_statuses: list[WireContainerStatus] | None = None


class PodItem(msgspec.Struct, gc=False):
    """One pod."""

    metadata: ItemMetadata
    spec: _PodSpec | None = None
    status: _PodStatus | None = None

    def owner(self) -> tuple[str, str]:
        """Return name and UID of the set that controls it; empty without one."""
        return set_of(self.metadata.owner_references or [])

    def read(self, *, left_to_hibernation: bool = False, is_deleted: bool = False) -> Pod:
        """Return the pod as plans ask about it; `is_deleted`: its deletion is known though not in here yet."""
        metadata, status = self.metadata, self.status or _PodStatus()
        conditions = status.conditions or ()
        unplaced = next((each for each in conditions if _is_unplaced(each)), None)
        word = metadata.text(f"{VM_PREFIX}lifecycle-state")
        return Pod(
            namespace=metadata.namespace,
            name=metadata.name,
            uid=metadata.uid,
            set_uid=self.owner()[1],
            resource_version=metadata.resource_version,
            node=(self.spec.node_name or "") if self.spec is not None else "",
            vm_name=metadata.text(VM_NAME) or pod_vm_name(metadata.namespace, metadata.name),
            terminating=is_deleted or metadata.deletion_timestamp is not None,
            ended=is_finished(status.phase),
            hibernates=metadata.is_true(HIBERNATE),
            keeps=metadata.is_true(KEEP),
            restores=metadata.is_true(RESTORE),
            lifecycle=next((each for each in Lifecycle if each.value == word), Lifecycle.OTHER),
            observed_generation=metadata.number(f"{VM_PREFIX}lifecycle-observed-generation"),
            stamped_generation=metadata.number(GENERATION),
            vm_id=metadata.text(VM_ID),
            ip=metadata.text(f"{VM_PREFIX}ip"),
            phase=status.phase or "",
            running=is_running(status.container_statuses),
            unschedulable=(unplaced.message or "Unschedulable") if unplaced is not None else "",
            left_to_hibernation=left_to_hibernation,
        )


class HibernationItem(msgspec.Struct, gc=False):
    """One CocoonHibernation."""

    metadata: ItemMetadata
    spec: Any = None
    status: Any = None

    @property
    def pod_name(self) -> str:
        """Name of the pod it targets, in its own namespace; empty when it is done with it."""
        spec = _table(self.spec)
        name = _table(spec.get("podRef")).get("name")
        is_done = spec.get("desire") == "Wake" and _table(self.status).get("phase") == "Active"
        return name if isinstance(name, str) and not is_done else ""


def _is_unplaced(condition: _PodCondition) -> bool:
    return (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _phase(value: object) -> Phase:
    return next((each for each in Phase if each.value == (value or "")), Phase.OTHER)


def _agent(value: dict[str, Any]) -> Agent:
    keys = ("podName", "vmName", "vmID", "ip", "phase")
    return Agent(*(str(value.get(key) or "") for key in keys))


def _condition(value: dict[str, Any]) -> Condition:
    return Condition(*(str(value.get(key) or "") for key in ("type", "status", "reason", "message")))
