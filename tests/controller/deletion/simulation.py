"""A whole cluster in virtual time under one seed: real decisions, syncs and elections, and faults at every step.

Real are reflector, pod and set copies, election, reconciler, table, brake, and the agents' own rules. In memory are the
API, the agents' disks and the network between all of them, which delays, cuts and loses on the seed's chance. Operators
create, suspend, wake, evict, delete; controllers are killed, agents restart, the Lease disappears.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from agent.snapshots.authority import Caller
from agent.snapshots.errors import SnapshotError, StaleControllerEpochError, StaleOwnerSyncError
from common.snapshot_words import Owner, PurgeReason, ReleaseReason, RetainOutcome, RetainReason
from controller.agents.cache_client import AgentCallError, AgentUnreachableError, StaleEpochError, StaleSyncError
from controller.deletion.actions import Actions
from controller.deletion.brake import Brake
from controller.deletion.brake_record import BrakeRecord
from controller.deletion.model import FoundSnapshot, PurgeResult
from controller.deletion.pace import Pace
from controller.deletion.pod_watch import PodWatch
from controller.deletion.reconciler import DeletionReconciler
from controller.deletion.sets import SetWatch
from controller.deletion.settling import Settler
from controller.kube.client import KubeClient
from controller.kube.election import Elector
from controller.kube.errors import ApiUnavailable
from controller.kube.leadership import ElectionTimes, Leadership
from controller.kube.reflector import ReflectorLimits
from tests.support.lease_server import LeaseClient, LeaseServer
from tests.support.sim_agent import SimAgent, SimSnapshot
from tests.support.sim_api import SETS, Json, SimApi, SimClient

KEEP = "vm.cocoonstack.io/keep-snapshot-on-delete"
STASH = "cocoonset.cocoonstack.io/hibernated-on-node"
DAY = 24 * 3600.0


@dataclass
class Fate:
    """What is true of the snapshots of one pod, whoever knows it: by the pod's UID."""

    node: str
    set_uid: str
    pod_name: str = ""
    gone: bool = False
    kept: bool = False
    disrupted_at: float | None = None
    moved_on: bool = False


@dataclass
class World:
    """The truth, and what went wrong. `gates` hold syncs that were sent to a node until they are set."""

    chance: random.Random
    api: SimApi = field(default_factory=SimApi)
    lease: LeaseServer = field(default_factory=LeaseServer)
    agents: dict[str, SimAgent] = field(default_factory=dict)
    channels: dict[str, object] = field(default_factory=dict)
    fates: dict[str, Fate] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    trouble: float = 0.0
    wrongs: list[str] = field(default_factory=list)
    purged: int = 0

    def now(self) -> float:
        """Virtual seconds, which are the wall's too."""
        return asyncio.get_running_loop().time()

    def still_needed(self, node: str, snapshot: SimSnapshot) -> str:
        """Why somebody still needs a snapshot, empty when nobody does."""
        fate = self.fates[snapshot.writer]
        if not fate.gone:
            return "its pod lives"
        sets = {each["metadata"]["uid"]: each for each in self.api.objects[SETS].values()}
        cocoon_set = sets.get(fate.set_uid)
        if fate.moved_on or (fate.set_uid and cocoon_set is None):
            return ""
        stash = cocoon_set["metadata"]["annotations"].get(STASH) if cocoon_set else None
        if cocoon_set and cocoon_set["spec"]["suspend"] and stash and stash != node:
            return ""  # Row 7: its set hibernates on another node.
        if fate.kept:
            return "its pod carried the flag"
        if cocoon_set and cocoon_set["spec"]["suspend"] and stash == node:
            return "its set is suspended and names this node"
        if fate.disrupted_at is not None and self.now() - fate.disrupted_at < DAY:
            return "its pod was evicted"
        return ""

    def on_purge(self, node: str, snapshot: SimSnapshot) -> None:
        """An agent removes a snapshot."""
        self.purged += 1
        if why := self.still_needed(node, snapshot):
            what = f"{snapshot.name} of {snapshot.writer} on {node}"
            self.wrongs.append(f"{self.now():.2f}: {what} purged, but {why}")


class Network:
    """The `AgentChannels` and `SnapshotCalls` of one controller: what is sent may be late or lost, answers too."""

    def __init__(self, world: World, leadership: Leadership) -> None:
        self._world = world
        self._leadership = leadership

    def channel(self, node: str) -> Any:  # noqa: ANN401 - any object stands for a connection
        """See AgentChannels."""
        return self._world.channels.get(node)

    def nodes(self) -> Iterable[str]:
        """See AgentChannels."""
        return self._world.agents.keys()

    def is_known(self, node: str) -> bool:
        """See AgentChannels."""
        return node in self._world.agents

    async def sync_owners(self, node: str, owners: Iterable[Owner], revision: int) -> tuple[FoundSnapshot, ...]:
        """See SnapshotCalls."""
        sent, gate = list(owners), self._world.gates.get(node)
        if gate is not None:
            await gate.wait()
        found: tuple[FoundSnapshot, ...] = await self._call(node, lambda a, caller: a.sync(sent, revision, caller))
        return found

    async def list_unclaimed(self, node: str) -> tuple[FoundSnapshot, ...]:
        """See SnapshotCalls."""
        raise AssertionError(f"nobody audits {node} here")

    async def retain(
        self,
        node: str,
        owner: Owner,
        reason: RetainReason,
        ttl_seconds: float | None,
        *,
        backup_verified: bool = False,  # noqa: ARG002 - see SnapshotCalls
    ) -> tuple[RetainOutcome, int]:
        """See SnapshotCalls."""
        kept: tuple[RetainOutcome, int] = await self._call(
            node, lambda agent, caller: agent.retain(owner, reason, ttl_seconds, caller)
        )
        return kept

    async def release(self, node: str, owner: Owner, reason: ReleaseReason) -> int:
        """See SnapshotCalls."""
        assert reason is not ReleaseReason.REQUESTED, "that is a person's word"
        count: int = await self._call(node, lambda agent, caller: agent.release(owner, caller))
        return count

    async def purge(self, node: str, owner: Owner, reason: PurgeReason, revision: int) -> tuple[PurgeResult, ...]:
        """See SnapshotCalls."""
        assert reason is not PurgeReason.REQUESTED, "that is a person's word"
        results: tuple[PurgeResult, ...] = await self._call(node, lambda a, caller: a.purge(owner, revision, caller))
        return results

    async def _call(self, node: str, work: Any) -> Any:  # noqa: ANN401 - the call's own result
        world = self._world
        caller = Caller(self._leadership.require(), "cluster")
        # From here on it is on its way, whatever becomes of the right to act.
        await asyncio.sleep(world.chance.uniform(0, 0.02))
        fault = world.chance.random() < world.trouble
        if fault and world.chance.random() < 0.4:
            await asyncio.sleep(world.chance.uniform(0, 30))
        if node not in world.channels or not world.agents[node].answers or (fault and world.chance.random() < 0.3):
            raise AgentUnreachableError(node, "Unavailable", "cut off")
        try:
            result = work(world.agents[node], caller)
        except StaleControllerEpochError as error:
            raise StaleEpochError(node, str(error), error.highest_epoch) from None
        except StaleOwnerSyncError as error:
            stale = StaleSyncError(node, error.reason, str(error))
            stale.epoch = caller.epoch if caller.epoch is not None else -1
            raise stale from None
        except SnapshotError as error:
            raise AgentCallError(node, error.reason, str(error)) from None
        if fault and world.chance.random() < 0.5:
            raise AgentUnreachableError(node, "Timeout", "the answer was lost")
        return result


class SimController:
    """One controller process; `kill` ends it as SIGKILL does."""

    def __init__(self, world: World, *, days: bool = False) -> None:
        """With `days` everything that happens every second or two happens every few minutes."""
        loop = asyncio.get_running_loop()
        client = SimClient(world.api, world.chance, lambda: world.trouble)
        kube = cast("KubeClient", client)
        times = ElectionTimes(1000, 700, 200) if days else ElectionTimes()
        self.elector = Elector(LeaseClient(world.lease, self._fault(world)), times=times, clock=loop.time)
        network = Network(world, self.elector.leadership)
        limits = ReflectorLimits(first_backoff_seconds=0.2, max_backoff_seconds=5)
        self.pods = PodWatch(kube, limits=limits)
        self.sets = SetWatch(kube, self._set_changed, limits=limits, clock=loop.time)
        brake = Brake(limit=20, window_seconds=120)
        actions = Actions(network, self.pods.read)
        record = BrakeRecord(brake, self.elector.annotate, lambda: self.elector.annotations, loop.time, loop.time)
        self.elector.leadership.subscribe(lambda epoch: None if epoch is None else record.learn())
        settler = Settler(self.pods, self.sets, actions, brake, loop.time, record=record)
        self.reconciler = DeletionReconciler(
            pods=self.pods,
            settler=settler,
            channels=network,
            calls=network,
            leadership=self.elector.leadership,
            recover=self.elector.recover,
            actions=actions,
            brake=brake,
            pace=Pace(workers=8, sweep=100) if days else Pace(workers=8),
            clock=loop.time,
            wall=loop.time,
        )
        self.pods.tell(self.reconciler)
        parts = (self.pods.run(), self.sets.run(), self.reconciler.run(), self.elector.run())
        self.tasks = [asyncio.create_task(part) for part in parts]

    def _set_changed(self, change: Any) -> None:  # noqa: ANN401 - a Change of a set
        self.reconciler.set_changed(change.item.metadata.uid)

    @staticmethod
    def _fault(world: World) -> Any:  # noqa: ANN401 - a function of LeaseClient's kind
        def fault(_: str) -> float | None:
            if world.chance.random() < world.trouble / 2:
                raise ApiUnavailable("cut")
            return world.chance.uniform(0, 4) if world.chance.random() < world.trouble else None

        return fault

    async def kill(self) -> None:
        """End it at this instant: nothing is released and nothing more is sent."""
        self.elector.leadership.revoke()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check_alive(self) -> None:
        """Raise what a part ended with."""
        for task in self.tasks:
            if task.done():
                task.result()
                raise AssertionError("a part of the controller ended")


def pod_object(uid: str, name: str, node: str, owner: Json | None) -> Json:
    """Return a bound, managed pod."""
    references = []
    if owner is not None:
        references = [
            {
                "apiVersion": "cocoonset.cocoonstack.io/v1",
                "kind": "CocoonSet",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": uid,
            "annotations": {"cocoonset.cocoonstack.io/managed": "true"},
            "ownerReferences": references,
        },
        "spec": {"nodeName": node},
        "status": {"conditions": []},
    }


def set_object(uid: str, name: str) -> Json:
    """Return a CocoonSet that is not suspended."""
    return {"metadata": {"name": name, "namespace": "shop", "uid": uid, "annotations": {}}, "spec": {"suspend": False}}
