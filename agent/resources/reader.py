"""The host's resources as last read well: overrides in their place, failed readings replaced by the last good value.

Why this exists: silence or a zero from the kernel is not news about the host. Until every resource has been read once
there is no report at all; afterwards a failed reading keeps the value before it and is told in a condition.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.config import Settings
from agent.resources.capacity import HostResources, Raw, StorageSpace, hugepages_name
from agent.resources.host import HostProbe, MemoryReading, ProbeError
from agent.resources.overlays import KnownVm, overlay_bytes

_HUGEPAGES_OVERRIDE_NAME = "hugepages-2Mi"


@dataclass(frozen=True, slots=True)
class StorageInputs:
    """What the snapshot cache adds to a reading of storage."""

    vms: tuple[KnownVm, ...] = ()
    reclaimable_bytes: int = 0
    problem: str | None = None


class ResourceReader:
    """Reads all resources of one host and remembers the last good values. Its methods block: call them in a thread."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self.probe = HostProbe(settings.procfs, settings.sysfs, settings.root_dir)
        self._settings = settings
        self._clock = clock
        self._problems: dict[str, ProbeError] = {}
        self._under_way: tuple[str, str] | None = None
        self._cpu = self._overridden(settings.node_cpu_millicores, "VK_NODE_CPU")
        self._memory = self._overridden(settings.node_memory_bytes, "VK_NODE_MEM")
        self._storage = self._overridden(settings.node_storage_bytes, "VK_NODE_STORAGE")
        self._space: StorageSpace | None = None
        self._device: int | None = None
        self._hugepages: dict[str, Raw] | None = None
        hugepages = self._overridden(settings.node_hugepages_bytes, "VK_NODE_HUGEPAGES")
        if hugepages is not None:
            self._hugepages = {_HUGEPAGES_OVERRIDE_NAME: hugepages} if hugepages.value else {}

    @property
    def problems(self) -> tuple[ProbeError, ...]:
        """The readings that failed the last time, sorted by resource."""
        return tuple(self._problems[resource] for resource in sorted(self._problems))

    def resources(self) -> HostResources | None:
        """Return the last good values, None while any resource has never been read."""
        cpu, memory, storage, hugepages = self._cpu, self._memory, self._storage, self._hugepages
        if cpu is None or memory is None or storage is None or hugepages is None:
            return None
        pods = Raw(self._settings.node_pods, True, "VK_NODE_PODS", storage.observed_at)
        return HostResources(cpu, memory, storage, self._space, dict(hugepages), pods)

    def read_fixed(self) -> None:
        """Read CPU, memory and huge pages, those of them that are not overridden."""
        settings = self._settings
        if settings.node_cpu_millicores is None:
            self._attempt("cpu", self.probe.cpu_origin, self._read_cpu)
        if settings.node_memory_bytes is None or settings.node_hugepages_bytes is None:
            self._attempt("memory", self.probe.memory_origin, self._read_memory)

    def read_storage(self, inputs: StorageInputs) -> None:
        """Read the storage, unless it is overridden."""
        if self._settings.node_storage_bytes is None:
            self._attempt("ephemeral-storage", self.probe.storage_origin, lambda: self._read_storage(inputs))

    def unanswered(self, seconds: float) -> ProbeError | None:
        """Return the error for the reading that is under way in another thread, None when there is none."""
        under_way = self._under_way
        if under_way is None:
            return None
        return ProbeError(*under_way, f"it has not answered for {seconds:g} s")

    def _attempt(self, resource: str, origin: str, read: Callable[[], None]) -> None:
        self._under_way = (resource, origin)
        try:
            read()
        except ProbeError as error:
            self._problems[resource] = error
        else:
            self._problems.pop(resource, None)
        finally:
            self._under_way = None

    def _read_cpu(self) -> None:
        value = self.probe.read_cpu_millicores()
        self._cpu = self._probed(value, self.probe.cpu_origin)

    def _read_memory(self) -> None:
        reading = self.probe.read_memory()
        if self._settings.node_memory_bytes is None:
            self._memory = self._probed(reading.total_bytes, self.probe.memory_origin)
        if self._settings.node_hugepages_bytes is None:
            self._hugepages = self._probed_hugepages(reading)

    def _probed_hugepages(self, memory: MemoryReading) -> dict[str, Raw]:
        probe = self.probe
        return {
            hugepages_name(size): self._probed(
                value, probe.memory_origin if size == memory.default_page_bytes else probe.hugepages_origin
            )
            for size, value in probe.read_hugepages(memory).items()
        }

    def _read_storage(self, inputs: StorageInputs) -> None:
        origin = self.probe.storage_origin
        if inputs.problem is not None:
            raise ProbeError("ephemeral-storage", origin, inputs.problem)
        reading = self.probe.read_storage()
        if self._device is not None and reading.device != self._device:
            # A mount that is gone uncovers the directory below it: the numbers would be those of another disk.
            problem = (
                "it is on another file system than at start; mount it again, or restart the agent if that is meant"
            )
            raise ProbeError("ephemeral-storage", origin, problem)
        self._device = reading.device
        self._storage = self._probed(reading.total_bytes, origin)
        self._space = StorageSpace(
            available_bytes=reading.available_bytes,
            overlay_bytes=overlay_bytes(self._settings.run_dir, inputs.vms, reading.device),
            reclaimable_bytes=inputs.reclaimable_bytes if self._settings.retained_is_reclaimable else 0,
        )

    def _probed(self, value: int, origin: str) -> Raw:
        return Raw(value, False, origin, self._clock())

    def _overridden(self, value: int | None, variable: str) -> Raw | None:
        return None if value is None else Raw(value, True, variable, self._clock())


def newest_reading(resources: HostResources) -> float:
    """Return the wall-clock time of the newest reading."""
    raws: Iterable[Raw] = (resources.cpu, resources.memory, resources.storage, *resources.hugepages.values())
    return max(raw.observed_at for raw in raws)
