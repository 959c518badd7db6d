"""From what was read to what may be scheduled: every number of a Node, with the steps that led to it.

Why this exists: operators sell what these few lines say. The arithmetic is exact integers, and each result carries its
steps, so that the explanation cannot drift from the number: raw value plus adjustments *is* the allocatable value.

Pure: no I/O, no clock, no logging.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from common.quantity import format_bytes, format_count, format_cpu

CPU = "cpu"
MEMORY = "memory"
STORAGE = "ephemeral-storage"
PODS = "pods"
HUGEPAGES_PREFIX = "hugepages-"

_MILLICORES_PER_CORE = 1000


@dataclass(frozen=True, slots=True)
class Raw:
    """A value before any arithmetic, in the resource's base unit: millicores, bytes, or a count.

    `overridden` tells an operator's number from a probed one; `origin` is the file, call or variable it came from;
    `observed_at` is the wall-clock time of the reading, seconds since the epoch.
    """

    value: int
    overridden: bool
    origin: str
    observed_at: float


class Adjustment(NamedTuple):
    """One step, a signed amount in the resource's base unit with a stable reason."""

    reason: str
    value: int


@dataclass(frozen=True, slots=True)
class ResourceAmount:
    """One resource of the Node: `raw.value` plus all adjustments gives `allocatable`."""

    name: str
    raw: Raw
    adjustments: tuple[Adjustment, ...]
    capacity: int
    allocatable: int


@dataclass(frozen=True, slots=True)
class StorageSpace:
    """What is free of the storage, in bytes: the file system's answer, and what is added back to it."""

    available_bytes: int
    overlay_bytes: int = 0
    reclaimable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HostResources:
    """Everything read or set, ready for the arithmetic.

    `storage_space` is None when the operator pinned the storage. `hugepages` maps resource names to bytes and has no
    entry for a size without pages.
    """

    cpu: Raw
    memory: Raw
    storage: Raw
    storage_space: StorageSpace | None
    hugepages: Mapping[str, Raw]
    pods: Raw


def resource_amounts(
    host: HostResources, reserve_percent: int, *, memory_excludes_hugepages: bool
) -> tuple[ResourceAmount, ...]:
    """Return every resource of the Node, sorted by name. `reserve_percent` is 0 to 100."""
    hugepages_bytes = sum(raw.value for raw in host.hugepages.values())
    amounts = [
        _cpu(host.cpu, reserve_percent),
        _memory(host.memory, hugepages_bytes if memory_excludes_hugepages else 0, reserve_percent),
        _storage(host.storage, host.storage_space, reserve_percent),
        ResourceAmount(PODS, host.pods, (), host.pods.value, host.pods.value),
    ]
    amounts += [_reserved(name, raw, [], reserve_percent) for name, raw in host.hugepages.items()]
    return tuple(sorted(amounts, key=lambda amount: amount.name))


def hugepages_name(page_bytes: int) -> str:
    """Return the resource name of a page size: 2097152 is `hugepages-2Mi`."""
    return HUGEPAGES_PREFIX + format_bytes(page_bytes)


def quantity_text(resource: str, value: int) -> str:
    """Return the canonical spelling of an amount in the resource's base unit, exactly as it goes to the Node."""
    if resource == CPU:
        return format_cpu(value)
    return format_count(value) if resource == PODS else format_bytes(value)


def memory_overcommitted_bytes(amounts: tuple[ResourceAmount, ...]) -> int:
    """Return by how many bytes huge pages, which memory's total includes, exceed what is held back of memory.

    0 when they fit into the reserve, or were taken off before it.
    """
    memory = next(amount for amount in amounts if amount.name == MEMORY)
    hugepages_bytes = sum(amount.capacity for amount in amounts if amount.name.startswith(HUGEPAGES_PREFIX))
    return max(0, hugepages_bytes - (memory.capacity - memory.allocatable))


def _cpu(raw: Raw, reserve_percent: int) -> ResourceAmount:
    # Whole cores once there is one: the fence that makes the reserve physical works in whole cores.
    millicores = _after_reserve(raw.value, reserve_percent)
    whole = millicores if millicores < _MILLICORES_PER_CORE else millicores - millicores % _MILLICORES_PER_CORE
    steps = [Adjustment("RESERVE", millicores - raw.value), Adjustment("WHOLE_CORES", whole - millicores)]
    return ResourceAmount(CPU, raw, _told(steps), raw.value, whole)


def _memory(raw: Raw, excluded_bytes: int, reserve_percent: int) -> ResourceAmount:
    steps = [
        Adjustment("HUGEPAGES_EXCLUDED", -excluded_bytes),
        Adjustment("FLOORED_AT_ZERO", max(0, excluded_bytes - raw.value)),
    ]
    return _reserved(MEMORY, raw, steps, reserve_percent)


def _storage(raw: Raw, space: StorageSpace | None, reserve_percent: int) -> ResourceAmount:
    if space is None:
        return _reserved(STORAGE, raw, [], reserve_percent)
    usable = space.available_bytes + space.overlay_bytes + space.reclaimable_bytes
    steps = [
        Adjustment("UNAVAILABLE_SPACE", space.available_bytes - raw.value),
        Adjustment("OVERLAYS_ADDED_BACK", space.overlay_bytes),
        Adjustment("RETAINED_RECLAIMABLE", space.reclaimable_bytes),
        Adjustment("CAPPED_AT_CAPACITY", min(0, raw.value - usable)),
    ]
    return _reserved(STORAGE, raw, steps, reserve_percent)


def _reserved(name: str, raw: Raw, steps: list[Adjustment], reserve_percent: int) -> ResourceAmount:
    base = raw.value + sum(step.value for step in steps)
    allocatable = _after_reserve(base, reserve_percent)
    steps = [*steps, Adjustment("RESERVE", allocatable - base)]
    return ResourceAmount(name, raw, _told(steps), raw.value, allocatable)


def _after_reserve(value: int, reserve_percent: int) -> int:
    return value * (100 - reserve_percent) // 100


def _told(steps: list[Adjustment]) -> tuple[Adjustment, ...]:
    # A step that moved nothing explains nothing; the reserve is told even at 0 %, because people look for it.
    return tuple(step for step in steps if step.value or step.reason == "RESERVE")
