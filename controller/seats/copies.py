"""The agents' local copies of a VM's snapshot: who holds one, keeping them, and taking back that a backup was seen.

Why this exists: before a VM is booted fresh every agent that answers is asked whether it holds a snapshot. That is
hundreds of calls for a set that may never have had one, so they go out a few at a time.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from common.logging import fields
from common.snapshot_words import Owner, RetainOutcome, RetainReason
from controller.agents.cache_client import AgentCallError
from controller.deletion.model import LocatedSnapshot
from controller.seats.model import Copies

log = logging.getLogger(__name__)

_AT_ONCE = 64
_GOING = "PURGING"

Answer = TypeVar("Answer")


class CopyCalls(Protocol):
    """What agents are asked; `controller.agents.cache_client.CacheClient` is one."""

    async def list_vm(self, node: str, vm_name: str) -> tuple[LocatedSnapshot, ...]:
        """Return a VM's snapshots on one node."""
        ...

    async def retain(
        self,
        node: str,
        owner: Owner,
        reason: RetainReason,
        ttl_seconds: float | None,
        *,
        backup_verified: bool = False,
    ) -> tuple[RetainOutcome, int]:
        """Keep an owner's snapshots."""
        ...


class LocalCopies:
    """Asks all agents that are connected."""

    def __init__(
        self,
        calls: CopyCalls,
        nodes: Callable[[], Iterable[str]],
        all_tried: Callable[[], bool],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`nodes` have an agent; `all_tried` says whether each of them has answered or failed to since the start.

        `wall` gives Unix seconds.
        """
        self._wall = wall
        self._calls = calls
        self._nodes = nodes
        self._all_tried = all_tried
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def holders(self, vm_name: str) -> Copies:
        """Return which agents hold a snapshot of the VM; one that cannot be reached holds none that we know of."""
        is_complete = self._all_tried()
        found = await self._ask(vm_name, self._nodes())
        holding = tuple(node for node, located in found if any(each.state != _GOING for each in located))
        return Copies(holding, is_complete)

    async def keep(self, vm_name: str, nodes: Iterable[str]) -> None:
        """Have these agents keep their copies without expiry; what fails is tried again at the next look."""
        for node, located in await self._ask(vm_name, nodes):
            for each in located:
                owner, kept = each.found.owner, each.found.retained
                if owner is None or (kept is not None and each.found.expires_at is None):
                    continue
                await self._retain(node, owner, RetainReason.SEAT_RELEASE, None)

    async def forget_backup(self, vm_name: str) -> None:
        """Tell agents that keep a copy that its backup is gone."""
        for node, located in await self._ask(vm_name, self._nodes()):
            for each in located:
                if each.found.owner is not None and each.found.retained is not None and each.found.backup_verified:
                    ends = each.found.expires_at
                    left = None if ends is None else max(1.0, ends - self._wall())
                    await self._retain(node, each.found.owner, each.found.retained, left)

    async def _ask(self, vm_name: str, nodes: Iterable[str]) -> list[tuple[str, tuple[LocatedSnapshot, ...]]]:
        names = sorted(nodes)
        answers = await asyncio.gather(*(self._list(node, vm_name) for node in names))
        return [(node, located) for node, located in zip(names, answers, strict=True) if located]

    async def _list(self, node: str, vm_name: str) -> tuple[LocatedSnapshot, ...]:
        async with self._slots:
            try:
                return await self._calls.list_vm(node, vm_name)
            except AgentCallError:
                return ()

    async def _retain(self, node: str, owner: Owner, reason: RetainReason, ttl_seconds: float | None) -> None:
        try:
            await self._calls.retain(node, owner, reason, ttl_seconds)
        except AgentCallError as error:
            log.warning("a copy could not be kept", extra=fields(node=node, vm=owner.vm_name, error=str(error)))
