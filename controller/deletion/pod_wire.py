"""The few keys of a pod's JSON that we read, as a short-lived tree; everything else is skipped by the decoder.

Annotations are of any type on purpose: one odd value must not make a whole list of pods unreadable.
"""

from functools import lru_cache
from typing import Any

import msgspec

from common.quantity import MAX_INT64, QuantityError, parse_quantity
from controller.cocoon_keys import KEEP, MANAGED, RESTORE, SET_KIND, SET_PREFIX, VM_ID, VM_NAME


class WireAnnotations(
    msgspec.Struct,
    gc=False,
    rename={
        "vm_name": VM_NAME,
        "vm_id": VM_ID,
        "keep": KEEP,
        "restores": RESTORE,
        "managed": MANAGED,
    },
):
    """The annotations that decide something."""

    vm_name: Any = None
    vm_id: Any = None
    keep: Any = None
    restores: Any = None
    managed: Any = None


class WireOwnerReference(msgspec.Struct, gc=False, rename="camel"):
    """Who owns a pod."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class WireMetadata(msgspec.Struct, gc=False, rename="camel"):
    """A pod's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: WireAnnotations | None = None
    owner_references: list[WireOwnerReference] | None = None


class WireRequests(msgspec.Struct, gc=False, rename={"ephemeral_storage": "ephemeral-storage"}):
    """What a container requests."""

    ephemeral_storage: Any = None


class WireResources(msgspec.Struct, gc=False):
    """A container's resources."""

    requests: WireRequests | None = None


class WireContainer(msgspec.Struct, gc=False):
    """A container of the spec."""

    resources: WireResources | None = None


class WireSpec(msgspec.Struct, gc=False, rename="camel"):
    """A pod's spec."""

    node_name: str | None = None
    containers: list[WireContainer] | None = None
    init_containers: list[WireContainer] | None = None


class WireCondition(msgspec.Struct, gc=False):
    """A condition of the status."""

    type: str = ""
    status: str = ""


class WireRunning(msgspec.Struct, gc=False):
    """That a container runs; since when does not matter."""


class WireState(msgspec.Struct, gc=False):
    """What a container does."""

    running: WireRunning | None = None


class WireContainerStatus(msgspec.Struct, gc=False):
    """A container of the status."""

    state: WireState | None = None


class WireStatus(msgspec.Struct, gc=False, rename="camel"):
    """A pod's status."""

    phase: str | None = None
    conditions: list[WireCondition] | None = None
    container_statuses: list[WireContainerStatus] | None = None


def set_of(references: list[WireOwnerReference]) -> tuple[str, str]:
    """Return name and UID of the CocoonSet that controls a pod; empty when none does."""
    for each in references:
        if each.controller and each.kind == SET_KIND and each.api_version.startswith(SET_PREFIX):
            return each.name, each.uid
    return "", ""


def is_disruption_target(status: WireStatus) -> bool:
    """Whether the condition that eviction, taints and preemption set is true."""
    # Loops, here and below: these run for every change of every pod, and a generator costs as much as what it yields.
    for each in status.conditions or ():  # noqa: SIM110 - see above
        if each.type == "DisruptionTarget" and each.status == "True":
            return True
    return False


def is_running(statuses: list[WireContainerStatus] | None) -> bool:
    """Whether any container runs."""
    for each in statuses or ():  # noqa: SIM110 - see above
        if each.state is not None and each.state.running is not None:
            return True
    return False


def is_finished(phase: str | None) -> bool:
    """Whether the pod has ended for good; the scheduler no longer counts what it requests."""
    return phase in ("Succeeded", "Failed")


def ephemeral_bytes(spec: WireSpec) -> int:
    """What the scheduler counts, init containers that run before the others included."""
    first = total = 0
    for container in spec.init_containers or ():
        first = max(first, _requested(container))
    for container in spec.containers or ():
        total += _requested(container)
    return min(MAX_INT64, max(first, total))


def _requested(container: WireContainer) -> int:
    if container.resources is None or container.resources.requests is None:
        return 0
    text = container.resources.requests.ephemeral_storage
    return _bytes(text) if isinstance(text, str) else 0


@lru_cache(maxsize=1024)
def _bytes(text: str) -> int:
    try:
        return max(0, parse_quantity(text).bytes())
    except QuantityError:
        return 0
