"""Keeps the Leases of Nodes whose agents live, on a loop of its own that nothing else can hold up.

Renewed every 10 s, valid for 40 s, each Node at its own moment of the 10 s, for agents heard from within 30 s. At the
start every Lease of ours that has not run out is renewed once before anything else, whether or not its agent has been
heard from yet: the agents of a cluster must not look dead because their controller changed.
A Lease carries the version it was read at, so a renewal by somebody else never goes unnoticed.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from common.logging import fields
from controller.kube.client import KubeClient
from controller.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from controller.kube.retry import ONCE
from controller.nodes.live import LeaseMetadata, LeaseObject, live_lease
from controller.nodes.metrics import LEASE_LATENESS, LEASE_RENEWALS
from controller.nodes.model import CONTROLLER, LEASE_NAMESPACE, Instant, LiveLease
from controller.nodes.steps import LEASES_PATH, lease_path

RENEW_SECONDS = 10.0
DURATION_SECONDS = 40
_TIMEOUT_SECONDS = 5.0
_RETRY_SECONDS = (0.5, 1.5)
_IN_FLIGHT = 64

_LOG = logging.getLogger(__name__)


class LeaseWatcher(Protocol):
    """Who decides whether a Node's agent lives, and wants to know when somebody else keeps the Node alive."""

    def is_heard_from(self, name: str) -> bool:
        """Whether the agent that speaks for this Node was heard from within 30 s."""

    def observe_foreign_lease(self, name: str, holder: str) -> None:
        """Somebody else renews this Node's Lease; it is no longer kept."""


@dataclass(slots=True)
class _Kept:
    """One Node whose Lease we keep; `due` is monotonic."""

    uid: str
    due: float
    lease: LeaseObject | None = None
    idle: bool = False
    renewed: bool = False
    failing: bool = False


class LeaseKeeper:
    """Renews Leases. `run` is the loop; the other methods may be called at any time from the same event loop."""

    def __init__(
        self, client: KubeClient, watcher: LeaseWatcher, clock: Callable[[], Instant], *, take_foreign: bool = False
    ) -> None:
        """`take_foreign` takes Leases from other holders, for operators who set the lifecycle to `own`."""
        self._client = client
        self._watcher = watcher
        self._clock = clock
        self._take_foreign = take_foreign
        self._kept: dict[str, _Kept] = {}
        self._foreign: dict[str, LiveLease] = {}
        self._listed: dict[str, LeaseObject] = {}
        self._heap: list[tuple[float, str]] = []
        self._wakeup = asyncio.Event()
        self._decode = msgspec.json.Decoder(LeaseObject).decode

    def lease(self, name: str) -> LiveLease | None:
        """The Lease as last seen; one that somebody else once held counts as theirs until we are restarted."""
        if name in self._foreign:
            return self._foreign[name]
        kept = self._kept.get(name)
        lease = kept.lease if kept else self._listed.get(name)
        return live_lease(lease) if lease else None

    def keep(self, name: str, uid: str) -> None:
        """Keep this Node's Lease from now on; `uid` is the Node's, which owns the Lease."""
        kept = self._kept.get(name)
        if kept is None:
            self._kept[name] = _Kept(uid, self._clock().monotonic, self._listed.pop(name, None))
            self._push(name)
        elif kept.uid != uid:
            kept.uid = uid
            self.hurry(name)

    def release(self, name: str) -> None:
        """Stop keeping this Node's Lease and let it run out."""
        self._kept.pop(name, None)

    def hurry(self, name: str) -> None:
        """Renew at once, for an agent that is back after its Lease was left alone."""
        kept = self._kept.get(name)
        if kept is not None and kept.idle:
            kept.idle = False
            kept.due = self._clock().monotonic
            self._push(name)

    async def take_over(self, *, renew: bool = True) -> None:
        """Read all Leases and renew those of ours that have not run out. Raises a KubeError when reading fails.

        Without `renew` they are only read, for operators who leave the Nodes' life to somebody else.
        """
        now = self._clock()
        ours: list[str] = []
        for lease in await self._client.list_objects(LEASES_PATH, LeaseObject):
            seen = live_lease(lease)
            if seen.is_foreign and not self._take_foreign:
                self._foreign[lease.metadata.name] = seen
                continue
            self._listed[lease.metadata.name] = lease
            if renew and seen.holder == CONTROLLER and not _has_run_out(seen, now.wall):
                ours.append(lease.metadata.name)
        limit = asyncio.Semaphore(_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for name in ours:
                group.create_task(self._take_over_one(name, limit))
        _LOG.info("leases taken over", extra=fields(count=len(ours)))

    async def run(self) -> None:
        """Renew until cancelled."""
        limit = asyncio.Semaphore(_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            while True:
                name = await self._next_due()
                await limit.acquire()
                group.create_task(self._renew_one(name, limit))

    async def _next_due(self) -> str:
        while True:
            self._wakeup.clear()
            now = self._clock().monotonic
            while self._heap and self._heap[0][0] <= now:
                due, name = heapq.heappop(self._heap)
                kept = self._kept.get(name)
                if kept is not None and kept.due == due:
                    return name
            pause = self._heap[0][0] - now if self._heap else None
            try:
                async with asyncio.timeout(pause):
                    await self._wakeup.wait()
            except TimeoutError:
                continue

    def _push(self, name: str) -> None:
        heapq.heappush(self._heap, (self._kept[name].due, name))
        self._wakeup.set()

    async def _take_over_one(self, name: str, limit: asyncio.Semaphore) -> None:
        async with limit:
            lease = self._listed.get(name)
            if lease is None:
                return
            try:
                self._listed[name] = await self._put(lease, None)
                LEASE_RENEWALS.labels("taken_over").inc()
            except KubeError as exc:
                # Its agent's first contact makes the next try.
                LEASE_RENEWALS.labels(exc.reason).inc()
                _LOG.warning("lease not taken over", extra=fields(node=name, reason=exc.reason, error=str(exc)))

    async def _renew_one(self, name: str, limit: asyncio.Semaphore) -> None:
        try:
            kept = self._kept.get(name)
            if kept is None:
                return
            due = kept.due
            if not self._watcher.is_heard_from(name):
                kept.idle = True
                kept.due = self._clock().monotonic + RENEW_SECONDS
                self._push(name)
                return
            kept.idle = False
            started = self._clock().monotonic
            done = await self._try_renewal(name, kept)
            if self._kept.get(name) is kept:
                kept.due = self._due_after(kept, due, done=done)
                self._push(name)
            if done:
                LEASE_LATENESS.observe(max(0.0, started - due))
        finally:
            limit.release()

    def _due_after(self, kept: _Kept, due: float, *, done: bool) -> float:
        now = self._clock().monotonic
        if not done:
            return now + random.uniform(*_RETRY_SECONDS)  # noqa: S311 - spreads load, no secret
        if not kept.renewed:
            # From here on each Node has its own moment of the ten seconds, however many came at once.
            kept.renewed = True
            return now + RENEW_SECONDS * random.random()  # noqa: S311 - the same
        return due + RENEW_SECONDS if due + RENEW_SECONDS > now else now + RENEW_SECONDS

    async def _try_renewal(self, name: str, kept: _Kept) -> bool:
        try:
            foreign = await self._renew(name, kept)
        except KubeError as exc:
            LEASE_RENEWALS.labels(exc.reason).inc()
            if not kept.failing:
                _LOG.warning("lease not renewed", extra=fields(node=name, reason=exc.reason, error=str(exc)))
            kept.failing = True
            return False
        except Exception:
            # One Lease that cannot be handled must not end the loop that keeps all others.
            LEASE_RENEWALS.labels("Unexpected").inc()
            _LOG.exception("lease not renewed for an unexpected reason", extra=fields(node=name))
            return False
        if kept.failing:
            _LOG.info("lease renewed again", extra=fields(node=name))
        kept.failing = False
        if foreign is not None:
            LEASE_RENEWALS.labels("foreign").inc()
            self._foreign[name] = foreign
            self.release(name)
            self._watcher.observe_foreign_lease(name, foreign.holder)
        else:
            LEASE_RENEWALS.labels("done").inc()
        return True

    async def _renew(self, name: str, kept: _Kept) -> LiveLease | None:
        """Renew one Lease; the Lease as it is when somebody else holds it."""
        for _ in range(3):
            try:
                if kept.lease is None:
                    kept.lease = await self._post(name, kept.uid)
                    return None
                seen = live_lease(kept.lease)
                if seen.is_foreign and not self._take_foreign:
                    return seen
                kept.lease = await self._put(kept.lease, kept.uid)
            except (Conflict, AlreadyExists):
                kept.lease = await self._get(name)
            except NotFound:
                kept.lease = None
            else:
                return None
        raise Conflict(f"lease {name} keeps changing under us")

    async def _get(self, name: str) -> LeaseObject | None:
        try:
            return self._decode(
                await self._client.get_bytes(lease_path(name), timeout_seconds=_TIMEOUT_SECONDS, retry=ONCE)
            )
        except NotFound:
            return None

    async def _post(self, name: str, uid: str) -> LeaseObject:
        metadata = LeaseMetadata(name, LEASE_NAMESPACE, owner_references=_owner(name, uid))
        body = msgspec.json.encode(LeaseObject(metadata, self._spec({})))
        return self._decode(await self._client.create(LEASES_PATH, body, timeout_seconds=_TIMEOUT_SECONDS, retry=ONCE))

    async def _put(self, lease: LeaseObject, uid: str | None) -> LeaseObject:
        metadata, name = lease.metadata, lease.metadata.name
        if uid:
            metadata = msgspec.structs.replace(metadata, owner_references=_owner(name, uid))
        body = msgspec.json.encode(LeaseObject(metadata, self._spec(lease.spec)))
        return self._decode(
            await self._client.replace(lease_path(name), body, timeout_seconds=_TIMEOUT_SECONDS, retry=ONCE, lean=True)
        )

    def _spec(self, before: dict[str, object]) -> dict[str, object]:
        return before | {
            "holderIdentity": CONTROLLER,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": self._clock().wall.isoformat(timespec="microseconds"),
        }


def _owner(name: str, uid: str) -> list[dict[str, object]]:
    return [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]


def _has_run_out(lease: LiveLease, now: datetime) -> bool:
    return lease.renewed_at is None or lease.renewed_at + timedelta(seconds=lease.duration_seconds) <= now
