"""The parts of pod deletion put together, for the controller and for whoever wants only this part of it.

Why this exists: watches, election, calls and decisions know each other only by protocols; here they get to know each
other. Nothing acts before the pods are listed and, where they are served, the sets.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field

import msgspec

from common.logging import fields
from controller.agents.cache_client import AgentChannels, CacheClient, CallSeconds
from controller.deletion.actions import Actions, Backups
from controller.deletion.brake import Brake
from controller.deletion.brake_record import BrakeRecord
from controller.deletion.metrics import LEADING
from controller.deletion.pace import Pace
from controller.deletion.pod_watch import PodWatch
from controller.deletion.reconciler import DeletionReconciler
from controller.deletion.sets import SetRecord, SetWatch
from controller.deletion.settling import Settler
from controller.kube.client import KubeClient
from controller.kube.election import Elector
from controller.kube.errors import KubeError
from controller.kube.events import EventRecorder
from controller.kube.leadership import ElectionTimes
from controller.kube.objects import Change, ChangeKind
from controller.kube.reflector import ReflectorLimits

log = logging.getLogger(__name__)

# Written by a person's command on the leader's Lease, the one object both may write.
RELEASE_ANNOTATION = "node.cocoonstack.io/release-braked-purges"
_POLL_SECONDS = 1.0
_CLUSTER_ID_SECONDS = 2.0


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Namespace(msgspec.Struct):
    metadata: _Metadata


async def read_cluster_id(client: KubeClient) -> str:
    """Return the UID of the namespace kube-system, by which agents tell clusters apart; asks until it is answered."""
    told = ""
    while True:
        try:
            body = await client.get_bytes("/api/v1/namespaces/kube-system")
            return msgspec.json.decode(body, type=_Namespace).metadata.uid
        except (KubeError, msgspec.DecodeError) as error:
            if str(error) != told:
                told = str(error)
                log.warning("the cluster's id cannot be read, trying again", extra=fields(error=told))
            await asyncio.sleep(_CLUSTER_ID_SECONDS)


@dataclass(frozen=True, slots=True)
class DeletionSettings:
    """What an operator or a test may choose; the defaults are the contract's."""

    lease_namespace: str = "cocoon-system"
    lease_name: str = "cocoon-node-controller"
    times: ElectionTimes = field(default_factory=ElectionTimes)
    trusted_prefixes: tuple[str, ...] = ()
    audit_only: bool = False
    brake_limit: int = 100
    brake_window_seconds: float = 600.0
    pace: Pace = field(default_factory=Pace)
    calls: CallSeconds = field(default_factory=CallSeconds)
    limits: ReflectorLimits = field(default_factory=ReflectorLimits)


class DeletionParts:
    """Everything pod deletion needs. `run` until cancelled; cancelling it gives the leadership back."""

    def __init__(
        self,
        client: KubeClient,
        channels: AgentChannels,
        *,
        events: EventRecorder | None = None,
        settings: DeletionSettings | None = None,
        elector: Elector | None = None,
        backups: Backups | None = None,
    ) -> None:
        """Nothing is asked or sent before `run`. An `elector` of the caller's is used and not run."""
        self.settings = settings or DeletionSettings()
        self._client = client
        chosen = self.settings
        self._runs_elector = elector is None and not chosen.audit_only
        self.elector = elector or Elector(
            client, namespace=chosen.lease_namespace, name=chosen.lease_name, times=chosen.times
        )
        self.calls = CacheClient(channels, self.elector.leadership, seconds=chosen.calls)
        self.pods = PodWatch(client, limits=chosen.limits)
        self.sets = SetWatch(client, self._set_changed, limits=chosen.limits)
        self.brake = Brake(chosen.brake_limit, chosen.brake_window_seconds)
        actions = Actions(self.calls, self.pods.read, events, audit_only=chosen.audit_only, backups=backups)
        record = BrakeRecord(
            self.brake, self.elector.annotate, lambda: self.elector.annotations, time.monotonic, time.time
        )
        self.elector.leadership.subscribe(lambda epoch: None if epoch is None else record.learn())
        self.settler = Settler(
            self.pods,
            self.sets,
            actions,
            self.brake,
            time.monotonic,
            trusted_prefixes=chosen.trusted_prefixes,
            record=None if chosen.audit_only else record,
        )
        self.reconciler = DeletionReconciler(
            pods=self.pods,
            settler=self.settler,
            channels=channels,
            calls=self.calls,
            leadership=self.elector.leadership,
            recover=self.elector.recover,
            actions=actions,
            brake=self.brake,
            pace=chosen.pace,
            audit_only=chosen.audit_only,
        )
        self.pods.tell(self.reconciler)
        self.elector.leadership.subscribe(lambda epoch: LEADING.set(epoch is not None))

    def unready_reasons(self) -> list[str]:
        """One sentence for each thing that is missing before decisions can be made."""
        reasons = []
        if not self.pods.has_synced:
            reasons.append(f"pods: {self.pods.reflector.problem or 'not listed yet'}")
        if not self.sets.has_settled:
            reasons.append(f"CocoonSets: {self.sets.reflector.problem or 'not listed yet'}")
        return reasons

    async def run(self) -> None:
        """Watch, seek the leadership, tell agents and decide; a follower keeps its copies warm."""
        elect = asyncio.create_task(self.elector.run()) if self._runs_elector else None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.pods.run())
                group.create_task(self.sets.run())
                group.create_task(self._reconcile())
                group.create_task(self._follow_release())
                if elect is not None:
                    group.create_task(_result_of(elect))
        finally:
            # After the work has ended: what is under way must not be sent beside the next leader's.
            if elect is not None:
                elect.cancel()
                await asyncio.gather(elect, return_exceptions=True)

    async def _reconcile(self) -> None:
        self.calls.cluster_id = await read_cluster_id(self._client)
        await self.reconciler.run()

    def _set_changed(self, change: Change[SetRecord]) -> None:
        """Pass on what can change a decision; sets are written far more often than they are suspended."""
        before, item = change.before, change.item
        is_deleted = change.kind is ChangeKind.DELETED
        if is_deleted or before is None or before.facts(confirmed=False) != item.facts(confirmed=False):
            self.reconciler.set_changed(item.metadata.uid)

    async def _follow_release(self) -> None:
        """Let braked purges go when a person writes a new word on the Lease."""
        handled: str | None = None
        while True:
            word = self.elector.annotations.get(RELEASE_ANNOTATION, "")
            if self.elector.leadership.epoch is None:
                handled = None
            elif handled is None:
                handled = word
            elif word != handled:
                handled = word
                log.warning("braked purges released", extra=fields(word=word, count=self.reconciler.release_brake()))
            await asyncio.sleep(_POLL_SECONDS)


async def _result_of(task: asyncio.Task[None]) -> None:
    """Wait for a task without passing a cancellation on to it; its error is raised here."""
    await asyncio.wait([task])
    task.result()
