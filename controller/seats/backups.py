"""Whether a VM's snapshot has a copy in the registry, for the promises that agents make.

Why this exists: under pressure an agent gives up first what can be had again. Keeping is urgent and the registry may be
slow, so the question is short and a silent registry means that no copy was seen.
"""

import asyncio
from typing import Protocol

from controller.seats.model import ManifestAnswer, RegistryAnswer

_SECONDS = 1.0


class ManifestQuestion(Protocol):
    """Who answers; `controller.seats.registry.Registry` is one."""

    async def manifest(self, vm_name: str) -> ManifestAnswer:
        """Return whether the hibernate snapshot of a VM is there."""
        ...


class RegistryBackups:
    """The `Backups` of pod deletion."""

    def __init__(self, registry: ManifestQuestion) -> None:
        """Asked anew each time: what was seen an hour ago may be deleted."""
        self._registry = registry

    async def seen(self, vm_name: str) -> bool:
        """Whether the manifest is seen now."""
        try:
            async with asyncio.timeout(_SECONDS):
                return (await self._registry.manifest(vm_name)).answer is RegistryAnswer.PRESENT
        except TimeoutError:
            return False
