"""One leader at a time, elected on a `coordination.k8s.io` Lease, with an epoch that every agent can check.

Why this exists: two controllers that act at once could purge what the other decided to keep. The leader's right to act
ends by the clock before anybody else's can begin, whether or not the API answers, and it is asked for right before
each changing call (`Leadership.require`). What slips through is refused by the agents: the epoch, the Lease's
`leaseTransitions`, grows with every change of holder.

Only the boot-time clock decides: it never jumps and goes on while the machine sleeps. Times in the Lease are for
people.
"""

import asyncio
import contextlib
import logging
import os
import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from common.logging import fields
from controller.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from controller.kube.leadership import ElectionTimes, EpochError, Leadership, NotLeadingError, boot_clock
from controller.kube.retry import ONCE, Retry

log = logging.getLogger(__name__)

# The API keeps leaseTransitions in 32 bits; an epoch beyond that cannot be written any more.
_MAX_EPOCH = 2**31 - 2
_RELEASE_SECONDS = 2.0


class LeaseClient(Protocol):
    """What the elector needs of an API client."""

    async def get_bytes(self, path: str, *, timeout_seconds: float = ..., retry: Retry = ...) -> bytes:
        """GET an object."""
        ...

    async def create(self, path: str, body: object, *, timeout_seconds: float = ..., retry: Retry = ...) -> bytes:
        """POST an object."""
        ...

    async def merge_patch(
        self, path: str, body: object, *, timeout_seconds: float = ..., retry: Retry = ..., lean: bool = ...
    ) -> bytes:
        """Merge-patch an object."""
        ...


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def holder(self) -> str:
        return self.spec.holder_identity or ""

    @property
    def transitions(self) -> int:
        return self.spec.lease_transitions or 0


class Elector:
    """Seeks and keeps the leadership. `run` until cancelled; cancelling it releases the Lease."""

    def __init__(
        self,
        client: LeaseClient,
        *,
        namespace: str = "cocoon-system",
        name: str = "cocoon-node-controller",
        times: ElectionTimes | None = None,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        """Nothing is asked before `run`. `clock` gives seconds that never go back."""
        self.leadership = Leadership(clock)
        # A process that starts again must never be taken for the one before.
        self.identity = f"{os.uname().nodename}_{uuid.uuid4()}"
        self.problem = "not asked yet"
        self.holder = ""
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._name = name
        self._times = times or ElectionTimes()
        self._clock = clock
        self._lease: _Lease | None = None
        self._observed_at = float("-inf")
        self._writing = asyncio.Lock()
        self._decode = msgspec.json.Decoder(_Lease).decode

    @property
    def annotations(self) -> Mapping[str, str]:
        """The Lease's annotations when last read or written."""
        return (self._lease.metadata.annotations or {}) if self._lease is not None else {}

    async def run(self) -> None:
        """Seek the leadership, keep it, seek it again when it is lost; until cancelled."""
        try:
            while True:
                if self.leadership.epoch is None:
                    self.leadership.revoke()
                await self._step()
                # Shorter than the retry time on purpose: a released Lease is taken within it.
                pause = self._times.retry * random.uniform(0.75, 0.95)  # noqa: S311 - keeps candidates apart only
                if self.leadership.epoch is not None:
                    pause = min(pause, self.leadership.seconds_left())
                await asyncio.sleep(pause)
        finally:
            await self._release()

    async def recover(self, highest_epoch: int) -> None:
        """Prove the leadership to agents that know a higher epoch, as after a Lease was deleted or restored.

        Reads the Lease uncached; if this process still holds it, raises its epoch above the one named. Raises
        NotLeadingError when it does not, EpochError when the epoch cannot be written, KubeError when the API fails.
        """
        if highest_epoch >= _MAX_EPOCH:
            raise EpochError(f"epoch {highest_epoch} is no count of changes of a Lease; the agent's record is damaged")
        async with self._writing:
            if self.leadership.require() > highest_epoch:
                return
            started = self._clock()
            lease = self._take(await self._get())
            if lease.holder != self.identity:
                self.leadership.revoke()
                raise NotLeadingError(f"the Lease is held by {lease.holder or 'nobody'}")
            epoch = max(highest_epoch, lease.transitions) + 1
            await self._patch(lease, epoch, started, {})
            log.warning("epoch raised, agents know a higher one", extra=fields(epoch=epoch, known=highest_epoch))

    async def annotate(self, key: str, value: str) -> None:
        """Write an annotation of the Lease while leading. Raises NotLeadingError, KubeError."""
        async with self._writing:
            epoch, lease = self.leadership.require(), self._lease
            if lease is None:
                raise NotLeadingError("the Lease was not read yet")
            await self._patch(lease, epoch, self._clock(), {key: value})

    async def _step(self) -> None:
        """One try to get or to renew the Lease; an error leaves things as they are until the time is up."""
        try:
            async with self._writing, asyncio.timeout(self._times.renew_deadline):
                if self.leadership.epoch is not None and self._lease is not None:
                    await self._renew(self._lease)
                else:
                    await self._seek()
            self._solved()
        except (KubeError, TimeoutError, msgspec.DecodeError) as error:
            text = str(error) or "the API did not answer in time"
            if text != self.problem:
                log.warning("election failed for now", extra=fields(lease=self._name, error=text))
            self.problem = text

    async def _renew(self, lease: _Lease) -> None:
        started = self._clock()
        epoch = self.leadership.require()
        try:
            await self._patch(lease, epoch, started, {})
        except Conflict:
            await self._look_again(epoch)
        except NotFound:
            # Deleted under us: nobody else has led since, so the count goes on from ours.
            with contextlib.suppress(AlreadyExists):
                await self._create(epoch + 1, started)

    async def _look_again(self, epoch: int) -> None:
        """Somebody wrote the Lease: it may be another holder, or only an annotation."""
        started = self._clock()
        lease = self._take(await self._get())
        if lease.holder != self.identity:
            log.warning("leadership lost", extra=fields(holder=lease.holder))
            self.leadership.revoke()
            return
        await self._patch(lease, max(epoch, lease.transitions), started, {})

    async def _seek(self) -> None:
        started = self._clock()
        try:
            lease = self._take(await self._get())
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await self._create(0, started)
            return
        duration = float(lease.spec.lease_duration_seconds or 0) or self._times.duration
        if lease.holder not in ("", self.identity) and self._clock() < self._observed_at + duration:
            return
        with contextlib.suppress(Conflict):
            await self._patch(lease, lease.transitions + 1, started, {})

    def _take(self, lease: _Lease) -> _Lease:
        """Remember a Lease that was read; how long it has looked the same is measured by our clock alone."""
        before = self._lease
        if before is None or before.metadata.resource_version != lease.metadata.resource_version:
            self._observed_at = self._clock()
        self._lease, self.holder = lease, lease.holder
        return lease

    async def _get(self) -> _Lease:
        body = await self._client.get_bytes(
            f"{self._collection}/{self._name}", timeout_seconds=self._attempt_seconds, retry=ONCE
        )
        return self._decode(body)

    async def _create(self, epoch: int, started: float) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": self._spec(epoch) | {"acquireTime": _micro_time()},
        }
        answer = await self._client.create(self._collection, body, timeout_seconds=self._attempt_seconds, retry=ONCE)
        self._granted(self._decode(answer), epoch, started)

    async def _patch(self, lease: _Lease, epoch: int, started: float, annotations: Mapping[str, str]) -> None:
        spec = self._spec(epoch)
        if lease.holder != self.identity:
            spec["acquireTime"] = _micro_time()
        metadata: dict[str, object] = {"resourceVersion": lease.metadata.resource_version}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body = {"metadata": metadata, "spec": spec}
        path = f"{self._collection}/{self._name}"
        answer = await self._client.merge_patch(
            path, body, timeout_seconds=self._attempt_seconds, retry=ONCE, lean=True
        )
        self._granted(self._decode(answer), epoch, started)

    def _granted(self, lease: _Lease, epoch: int, started: float) -> None:
        """The API has written us as the holder; the right counts from before the request was sent."""
        if self.leadership.epoch is None:
            log.info("leading", extra=fields(lease=self._name, epoch=epoch, identity=self.identity))
        self._take(lease)
        self.leadership.grant(epoch, started + self._times.renew_deadline)

    def _spec(self, epoch: int) -> dict[str, object]:
        return {
            "holderIdentity": self.identity,
            # Whole seconds in the API; rounded up, so that nobody follows early.
            "leaseDurationSeconds": int(-(-self._times.duration // 1)),
            "renewTime": _micro_time(),
            "leaseTransitions": epoch,
        }

    @property
    def _attempt_seconds(self) -> float:
        # Less than a whole step has: a request that ends by itself tells that the API is out of reach.
        return min(max(1.0, self._times.retry * 1.5), self._times.renew_deadline * 0.9)

    def _solved(self) -> None:
        if self.problem and self.problem != "not asked yet":
            log.info("election works again", extra=fields(lease=self._name))
        self.problem = ""

    async def _release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for it to run out."""
        lease, led = self._lease, self.leadership.epoch is not None
        self.leadership.revoke()
        if lease is None or not led:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                try:
                    await self._empty(lease)
                except Conflict:
                    # A renewal that was cut off may have arrived all the same.
                    lease = await self._get()
                    if lease.holder == self.identity:
                        await self._empty(lease)
            log.info("leadership released", extra=fields(lease=self._name))
        except (KubeError, TimeoutError) as error:
            log.warning("the Lease was not released and runs out", extra=fields(lease=self._name, error=str(error)))

    async def _empty(self, lease: _Lease) -> None:
        body = {
            "metadata": {"resourceVersion": lease.metadata.resource_version},
            "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _micro_time()},
        }
        path = f"{self._collection}/{self._name}"
        await self._client.merge_patch(path, body, timeout_seconds=_RELEASE_SECONDS, retry=ONCE)


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
