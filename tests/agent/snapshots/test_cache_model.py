"""Any sequence of calls, crashes and clock changes by two callers at once keeps the rules of the cache.

The model knows what was promised, claimed and seen, and nothing of how the cache works. After every step each snapshot
that has gone must be one that a call of that step was allowed to remove, and everything that was promised must be
there.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from agent.snapshots.collection import Policy
from agent.snapshots.errors import SnapshotError
from agent.snapshots.model import SnapshotState
from agent.snapshots.names import owned_names
from agent.snapshots.stores.directory import DirectoryStore
from common.snapshot_words import Owner, RetainOutcome
from tests.agent.snapshots.caching import CRASH_POINTS, DAY, HOUR, CacheHost, SlowStore, pod

# Two pods whose VMs have one name, a third whose name begins with theirs, and one that claims another's VM.
PODS = (("a-b", "c"), ("a", "b-c"), ("a-b", "c-0"), ("evil", "p"))
VM_NAMES = ("vk-a-b-c", "vk-a-b-c-0")
NAMES = tuple(name for vm in VM_NAMES for name in owned_names(vm))


class SimulatedCrash(BaseException):
    """The process dies here."""


def owner_of(index: int, generation: int, *, keep: bool = False) -> Owner:
    namespace, name = PODS[index]
    owner = pod(namespace, name, f"uid-{index}-{generation}", keep_on_delete=keep)
    return replace(owner, vm_name="vk-a-b-c") if namespace == "evil" else owner


@dataclass
class Instance:
    """One thing that stood under a name: ids are never used twice."""

    name: str
    snapshot_id: str
    recorded: tuple[str, str] | None = None
    """Namespace and pod that claimed it alone while it was there, when none was recorded before."""


@dataclass
class Promise:
    """An acknowledged retention."""

    snapshot_id: str
    owner: Owner
    expires_at: float | None


@dataclass
class Model:
    """What is known for certain; anything a crash left open is not in here."""

    instances: dict[str, Instance] = field(default_factory=dict)
    owners: tuple[Owner, ...] | None = ()
    """Owners of the last sync; None when a crash left open which."""
    promises: list[Promise] = field(default_factory=list)
    synced: bool = False
    """A sync has been applied since the last start."""
    seen: dict[int, frozenset[str]] = field(default_factory=dict)
    """By revision: ids that were there when the sync had been applied, and unclaimed in it."""

    def claimed(self, name: str) -> bool:
        return any(name in owned_names(owner.vm_name) for owner in self.owners or ())

    def promised(self, snapshot_id: str, now: float) -> bool:
        return any(
            kept.snapshot_id == snapshot_id and (kept.expires_at is None or kept.expires_at > now)
            for kept in self.promises
        )


Action = tuple[Any, ...]
# Drawn so that calls meet: mostly the same pod and the newest sync, and syncs in which nobody claims anything.
_indexes = st.sampled_from([0, 0, 0, 1, 2, 3])
_generations = st.sampled_from([0, 0, 0, 1])
_owners = st.lists(st.tuples(_indexes, _generations, st.booleans()), max_size=3, unique_by=lambda one: one[0])
_sync = st.tuples(st.just("sync"), st.just([]) | _owners)
_actions: st.SearchStrategy[Action] = st.one_of(
    _sync,
    st.tuples(st.just("retain"), _indexes, _generations, st.sampled_from([None, HOUR, DAY])),
    st.tuples(st.just("release"), _indexes, _generations),
    st.tuples(st.just("purge"), _indexes, _generations, st.sampled_from([0, 0, 0, -1, -2, 1])),
    st.tuples(st.just("purge by person"), st.sampled_from(VM_NAMES), st.booleans()),
    st.tuples(st.just("collect"), st.sampled_from([Policy(keep_at_most=0), Policy(max_age_seconds=HOUR)])),
)


class CacheRules(RuleBasedStateMachine):
    """Runs the steps on a real store and ledger and compares with the model."""

    store: ClassVar[type[DirectoryStore]] = DirectoryStore

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="cache-model-"))
        self.loop = asyncio.new_event_loop()
        self.doom: str | None = None
        self.host = CacheHost(self.base, crash_point=self._crash_point, store=self.store)
        self.loop.run_until_complete(self.host.open())
        self.model = Model()
        self.clock_trusted = True

    def teardown(self) -> None:
        self.loop.run_until_complete(self.host.cache.close())
        self.loop.close()
        shutil.rmtree(self.base)

    # Steps -------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from((*NAMES, "ubuntu")))
    def write(self, name: str) -> None:
        """A writer puts a snapshot in place; what stood there before is another's to miss."""
        snapshot_id = self.host.write(name)
        self.model.instances[name] = Instance(name, snapshot_id)

    @rule(owners=_owners, index=_indexes, generation=_generations, ttl=st.sampled_from([None, HOUR]))
    def suspend(self, owners: list[tuple[int, int, bool]], index: int, generation: int, ttl: float | None) -> None:
        """A pod claims its VM, is deleted, and perhaps its snapshots are kept: what most histories begin with."""
        for name in owned_names(owner_of(index, generation).vm_name):
            self.write(name)
        self._run([("sync", owners)])
        if ttl is not None:
            self._run([("retain", index, generation, ttl)])
        self._run([("sync", [])])

    @rule(index=_indexes, offset=st.sampled_from([0, -1]), restarted=st.booleans())
    def purge_late(self, index: int, offset: int, *, restarted: bool) -> None:
        """F32: the next pod has hibernated, or the agent has restarted, when a purge for the last one arrives."""
        self._run([("sync", [])])
        if restarted:
            self._restart(self.host.crash)
        else:
            self.write(owner_of(index, 0).vm_name)
        self._run([("purge", index, 0, offset)])

    @rule(name=st.sampled_from(NAMES))
    def pend(self, name: str) -> None:
        """A writer begins and does not end."""
        (self.host.root / f".pending-{name}").mkdir(exist_ok=True)

    @rule(action=_actions)
    def one_call(self, action: Action) -> None:
        self._run([action])

    @rule(first=_actions, second=_actions)
    def two_calls_at_once(self, first: Action, second: Action) -> None:
        self._run([first, second])

    @rule(
        action=_actions,
        point=st.sampled_from(CRASH_POINTS),
    )
    def crash_in_a_call(self, action: Action, point: str) -> None:
        """The process dies at a named point of a call, if the call gets there, else right after it."""
        self.doom = point
        self._run([action])
        self.doom = None
        self._restart(self.host.crash)

    @rule(orderly=st.booleans())
    def restart(self, *, orderly: bool) -> None:
        self._restart(self.host.restart if orderly else self.host.crash)

    @rule(seconds=st.sampled_from([60.0, HOUR, 25 * HOUR]))
    def time_passes(self, seconds: float) -> None:
        self.host.clock.pass_time(seconds)

    @rule(seconds=st.sampled_from([-365 * DAY, -HOUR, HOUR, 365 * DAY]), there_and_back=st.booleans())
    def clock_is_set(self, seconds: float, *, there_and_back: bool) -> None:
        """F30: a clock that is set makes nothing old, whether it is set back or not."""
        self.host.clock.step(seconds)
        self.loop.run_until_complete(self.host.cache.settle())
        if there_and_back:
            self.host.clock.pass_time(30)
            self.host.clock.step(-seconds)
        else:
            self._forget_expiries()

    # Running and judging -----------------------------------------------------------------------------------------

    def _run(self, actions: list[Action]) -> None:
        before = self._on_disk()
        outcomes = self.loop.run_until_complete(self._gather(actions))
        gone = [self.model.instances[name] for name, snapshot_id in before.items() if self._id_of(name) != snapshot_id]
        contexts = [self._copy()]
        for action, outcome in zip(actions, outcomes, strict=True):
            context = self._copy()
            self._learn(context, action, outcome)
            contexts.append(context)
        for instance in gone:
            assert any(
                self._may_remove(context, action, outcome, instance)
                for action, outcome in zip(actions, outcomes, strict=True)
                for context in contexts
            ), f"{instance} went by {list(zip(actions, outcomes, strict=True))}"
            del self.model.instances[instance.name]
        for action, outcome in zip(actions, outcomes, strict=True):
            self._learn(self.model, action, outcome)
        self._check()

    async def _gather(self, actions: list[Action]) -> list[object]:
        return await asyncio.gather(*(self._call(action) for action in actions))

    async def _call(self, action: Action) -> object:
        """Make one call; its outcome is what it returned, or the error."""
        try:
            return await self._calls()[action[0]](*action[1:])
        except (SnapshotError, SimulatedCrash) as error:
            return error

    def _calls(self) -> dict[str, Callable[..., Awaitable[object]]]:
        host = self.host

        async def sync(chosen: list[tuple[int, int, bool]]) -> object:
            owners = tuple(owner_of(index, generation, keep=keep) for index, generation, keep in chosen)
            host.revision += 1
            revision = host.revision
            await host.sync(*owners, revision=revision)
            return revision, owners

        async def retain(index: int, generation: int, ttl: float | None) -> object:
            now = host.clock.wall()
            outcome = await host.retain(owner_of(index, generation), ttl_seconds=ttl)
            return outcome, now

        return {
            "sync": sync,
            "retain": retain,
            "release": lambda index, generation: host.release(owner_of(index, generation)),
            "purge": lambda index, generation, offset: host.purge(
                owner_of(index, generation), revision=max(0, host.revision + offset)
            ),
            "purge by person": lambda vm_name, force: host.purge_by_person(vm_name, force=force),
            "collect": host.collect,
        }

    def _learn(self, model: Model, action: Action, outcome: object) -> None:
        """Put into a model what a finished call makes certain."""
        kind = action[0]
        if isinstance(outcome, SimulatedCrash):
            self._learn_crash(model, action)
        elif isinstance(outcome, SnapshotError):
            return
        elif kind == "sync":
            revision, owners = cast("tuple[int, tuple[Owner, ...]]", outcome)
            self._learn_sync(model, revision, owners)
        elif kind == "retain":
            self._learn_retention(model, action, outcome)
        elif kind == "release":
            uid = owner_of(action[1], action[2]).pod_uid
            model.promises = [kept for kept in model.promises if kept.owner.pod_uid != uid]

    def _learn_sync(self, model: Model, revision: int, owners: tuple[Owner, ...]) -> None:
        for owner in owners:
            model.promises = [
                kept
                for kept in model.promises
                if not kept.owner.same_pod_name(owner) or kept.owner.pod_uid == owner.pod_uid
            ]
        staying = {owner.pod_uid for owner in owners}
        for left in model.owners or ():
            replaced = any(left.same_pod_name(owner) for owner in owners)
            if left.keep_on_delete and left.pod_uid not in staying and not replaced:
                for name in owned_names(left.vm_name):
                    if name in model.instances:
                        model.promises.append(Promise(model.instances[name].snapshot_id, left, None))
        model.owners = owners
        model.synced = True
        for name, instance in model.instances.items():
            pods = {(one.namespace, one.pod_name) for one in owners if name in owned_names(one.vm_name)}
            if instance.recorded is None and len(pods) == 1:
                model.instances[name] = replace(instance, recorded=next(iter(pods)))
        model.seen[revision] = frozenset(
            instance.snapshot_id for instance in model.instances.values() if not model.claimed(instance.name)
        )

    def _learn_retention(self, model: Model, action: Action, outcome: object) -> None:
        result, now = cast("tuple[RetainOutcome, float]", outcome)
        _, index, generation, ttl = action
        owner = owner_of(index, generation)
        if result is not RetainOutcome.RETAINED or not self.clock_trusted:
            return
        for name in owned_names(owner.vm_name):
            if name in model.instances:
                expires_at = None if ttl is None else now + ttl
                model.promises.append(Promise(model.instances[name].snapshot_id, owner, expires_at))

    def _learn_crash(self, model: Model, action: Action) -> None:
        """A call that died may have had its effect or not: what it could have ended is no longer certain."""
        if action[0] == "sync":
            pods = [PODS[index] for index, _, _ in action[1]]
            model.promises = [
                kept for kept in model.promises if (kept.owner.namespace, kept.owner.pod_name) not in pods
            ]
            model.owners = None
        elif action[0] == "release":
            uid = owner_of(action[1], action[2]).pod_uid
            model.promises = [kept for kept in model.promises if kept.owner.pod_uid != uid]

    def _may_remove(self, model: Model, action: Action, outcome: object, instance: Instance) -> bool:
        """Whether a call may have removed an instance, as the rules say; judged by one possible order of events."""
        kind, now = action[0], self.host.clock.wall()
        if model.claimed(instance.name) or instance.name not in NAMES:
            return False
        if kind == "purge by person":
            forced = bool(action[2])
            return instance.name in owned_names(action[1]) and (forced or not model.promised(instance.snapshot_id, now))
        if model.promised(instance.snapshot_id, now) and kind != "collect":
            return False
        if kind == "purge":
            owner = owner_of(action[1], action[2])
            revision = max(0, self.host.revision + action[3])
            revisions = [one for one in model.seen if one <= revision] if model.synced else []
            return (
                owner.namespace != "evil"
                and instance.recorded in (None, (owner.namespace, owner.pod_name))
                and instance.name in owned_names(owner.vm_name)
                and any(instance.snapshot_id in model.seen[one] for one in revisions)
            )
        if kind == "collect":
            return model.synced and not isinstance(outcome, SnapshotError)
        return False

    def _check(self) -> None:
        """Everything that was not taken away is there, is told of, and is in the state the rules give it."""
        self.loop.run_until_complete(self._compare())

    async def _compare(self) -> None:
        with contextlib.suppress(SnapshotError):
            await self.host.cache.look()
        if self.doom is not None:
            return
        page = await self.host.cache.page(size=1000)
        listed = {record.name: record for record in page.snapshots if not record.is_pending}
        assert {name: record.snapshot_id for name, record in listed.items()} == {
            name: instance.snapshot_id for name, instance in self.model.instances.items()
        }
        now = self.host.clock.wall()
        for name, record in listed.items():
            assert (record.state is SnapshotState.SHARED) == (name == "ubuntu"), record.state
            if self.model.claimed(name):
                assert record.state is SnapshotState.IN_USE
            elif self.model.owners is not None and self.model.promised(record.snapshot_id, now):
                assert record.state is SnapshotState.RETAINED, (name, record.facts, self.model.promises)

    def _restart(self, how: Callable[[], Awaitable[None]]) -> None:
        self.loop.run_until_complete(how())
        self.model.synced = False
        self.model.seen.clear()
        self._check()

    def _crash_point(self, name: str) -> None:
        if name == self.doom:
            raise SimulatedCrash(name)

    def _forget_expiries(self) -> None:
        """A promise with an end that a set clock has come near to is no longer compared: its end is not certain."""
        self.model.promises = [kept for kept in self.model.promises if kept.expires_at is None]

    def _copy(self) -> Model:
        return replace(
            self.model,
            instances=dict(self.model.instances),
            promises=list(self.model.promises),
            seen=dict(self.model.seen),
        )

    def _on_disk(self) -> dict[str, str]:
        return {name: instance.snapshot_id for name, instance in self.model.instances.items()}

    def _id_of(self, name: str) -> str:
        return self.model.instances[name].snapshot_id if self.host.on_disk(name) else ""


class SlowCacheRules(CacheRules):
    """The same while removals go on without the lock."""

    store = SlowStore


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rules", [CacheRules, SlowCacheRules])
def test_every_sequence_of_calls_keeps_the_rules(rules: type[CacheRules], long_profile: bool) -> None:
    """F29, F30, F31, F32: two callers, crashes, restarts and clock changes in any order."""
    run_state_machine_as_test(
        rules,
        settings=settings(
            max_examples=500 if long_profile else 25,
            stateful_step_count=40 if long_profile else 25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
