"""Whether a VM's snapshot has a copy in the registry, for the promises that agents make.

Why this exists: under pressure an agent gives up first what can be had again. Keeping is urgent and the registry may be
slow, so the question is short and a silent registry means that no copy was seen. Thousands of VMs sleep for weeks:
whether their copies are still there is asked once an hour, spread evenly.
"""

import asyncio
import time
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from controller.seats.model import ManifestAnswer, RegistryAnswer

_SECONDS: Final = 1.0
_ASK_SEEN_SECONDS: Final = 3600.0
_ASK_UNSEEN_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 100_000


class ManifestQuestion(Protocol):
    """Who answers; `controller.seats.registry.Registry` is one."""

    async def manifest(self, vm_name: str) -> ManifestAnswer:
        """Return whether the hibernate snapshot of a VM is there."""
        ...


class RegistryBackups:
    """The `Backups` of pod deletion. `clock` gives monotonic seconds."""

    def __init__(self, registry: ManifestQuestion, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is asked yet."""
        self._registry = registry
        self._clock = clock
        self._asked_at: dict[str, float] = {}

    async def seen(self, vm_name: str) -> bool:
        """Whether the manifest is seen now."""
        return await self._ask(vm_name) is RegistryAnswer.PRESENT

    async def still(self, vm_name: str, said: bool) -> bool:
        """Whether the manifest is seen, when that was `said` last; a registry that does not say changes nothing."""
        now = self._clock()
        asked_at = self._asked_at.get(vm_name)
        if asked_at is None and said:
            # After a start thousands would be asked about at once.
            asked_at = self._asked_at[vm_name] = now - zlib.crc32(vm_name.encode()) % 3600
        if asked_at is not None and now - asked_at < (_ASK_SEEN_SECONDS if said else _ASK_UNSEEN_SECONDS):
            return said
        answer = await self._ask(vm_name)
        return said if answer is RegistryAnswer.UNKNOWN else answer is RegistryAnswer.PRESENT

    async def _ask(self, vm_name: str) -> RegistryAnswer:
        if len(self._asked_at) >= _MOST_KNOWN:
            self._asked_at.clear()
        self._asked_at[vm_name] = self._clock()
        try:
            async with asyncio.timeout(_SECONDS):
                return (await self._registry.manifest(vm_name)).answer
        except TimeoutError:
            return RegistryAnswer.UNKNOWN
