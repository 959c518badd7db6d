"""Does for each set what its plan says, step by step, until the plan is empty.

Why this exists: this is where copies, plans and actions meet. It keeps nothing that a restart would lose, and may end
between any two steps. A set is looked at when something about it changed, while it waits for its gate or its wake every
few seconds, and when it sleeps not at all.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from common.logging import fields
from controller.kube.errors import KubeError
from controller.kube.leadership import Leadership, NotLeadingError
from controller.kube.queue import WorkQueue
from controller.seats.actions import OutdatedError, SeatActions
from controller.seats.metrics import QUEUE_DEPTH, RELEASE, SETS, STEPS
from controller.seats.model import CocoonSet, ManifestAnswer, Phase, PodRead, RegistryAnswer, Situation
from controller.seats.plan import is_ours, plan
from controller.seats.steps import Do, Step
from controller.seats.watch import SeatWatch

log = logging.getLogger(__name__)

CrashPoint = Callable[[str], None]
"""Called with the name of each point at which a crash must lose nothing; does nothing outside tests."""

# Each question is asked once, one about a registry once for each pod.
_MOST_QUESTIONS = 20
_OUTDATED_SECONDS = 0.2
_UNSYNCED_SECONDS = 1.0
_HELD_SECONDS = 30.0


def no_crash(_name: str) -> None:
    """Do not crash."""


@dataclass(frozen=True, slots=True)
class SeatPace:
    """How many sets are worked on at once, and how often what is there is counted, in seconds."""

    workers: int = 64
    measure: float = 30.0


class SeatReconciler:
    """`run` until cancelled. `changed` may be called at any time."""

    def __init__(
        self,
        watch: SeatWatch,
        actions: SeatActions,
        leadership: Leadership,
        *,
        pace: SeatPace | None = None,
        may_act: Callable[[], bool] = lambda: True,
        crash_point: CrashPoint = no_crash,
    ) -> None:
        """`may_act` says whether nobody else releases seats in this cluster."""
        self.queue = WorkQueue()
        self._watch = watch
        self._actions = actions
        self._leadership = leadership
        self._pace = pace or SeatPace()
        self._may_act = may_act
        self._crash_point = crash_point
        leadership.subscribe(lambda epoch: None if epoch is None else self.look_at_all())

    def changed(self, key: str) -> None:
        """Something about this set, or about a pod that may be its own, changed."""
        item = self._watch.set_item(key)
        if item is not None and self._leadership.epoch is not None and is_ours(item.read()):
            self.queue.add(key)

    def look_at_all(self) -> None:
        """Look at every set once."""
        for key in self._watch.set_keys():
            self.changed(key)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.queue.run(self._work, workers=self._pace.workers))
            group.create_task(self._run_measure())

    async def _work(self, key: str) -> None:
        """Bring one set forward. Raises KubeError, which puts it off."""
        if self._leadership.epoch is None:
            return
        if not self._watch.has_synced or not self._may_act():
            self.queue.add_after(key, _HELD_SECONDS if self._watch.has_synced else _UNSYNCED_SECONDS)
            return
        try:
            again = await self._advance(key)
        except NotLeadingError:
            return  # Whoever leads goes on from where this ended.
        except OutdatedError as error:
            log.debug("planned anew", extra=fields(set=key, why=str(error)))
            again = _OUTDATED_SECONDS
        if again is not None:
            self.queue.add_after(key, again)

    async def _advance(self, key: str) -> float | None:
        """Find out what the plan asks for, then do what it says; return when to look again."""
        cs = self._watch.cocoon_set(key)
        if cs is None:
            self.queue.discard(key)
            return None
        situation = Situation(
            cs,
            self._watch.pods_of(cs),
            registry_configured=self._actions.registry is not None,
            hibernations_known=self._watch.hibernations_known,
            older_namesake=self._watch.older_namesake(cs),
        )
        if self._watch.is_doubtful(cs):
            situation = replace(situation, pod_read=PodRead(await self._actions.read_pod(cs)))
        for _ in range(_MOST_QUESTIONS):
            decided = plan(situation)
            if not decided.steps or not decided.steps[0].do.asks:
                await self._do_all(situation.cocoon_set, decided.steps)
                return decided.again_seconds
            asked = await self._ask(situation, decided.steps[0])
            if asked is None:
                return None
            situation = asked
        raise OutdatedError("a plan that only asks")

    async def _ask(self, situation: Situation, step: Step) -> Situation | None:
        """Return the situation with one more thing known; None when the set is gone."""
        self._crash_point(f"before {step.do.name}")
        cs = situation.cocoon_set
        match step.do:
            case Do.READ_SET:
                found = await self._actions.read_set(cs)
                return None if found is None else replace(situation, cocoon_set=found, set_read=True)
            case Do.READ_POD:
                return replace(situation, pod_read=PodRead(await self._actions.read_pod(cs)))
            case Do.ASK_REGISTRY:
                answer = await self._manifest(step.vm_name)
                return replace(situation, manifests=situation.manifests | {step.vm_name: answer})
            case _:
                return replace(situation, copies=await self._actions.copies.holders(step.vm_name))

    async def _manifest(self, vm_name: str) -> ManifestAnswer:
        if self._actions.registry is None:
            return ManifestAnswer(RegistryAnswer.UNKNOWN, "no registry is configured")
        return await self._actions.registry.manifest(vm_name)

    async def _do_all(self, cs: CocoonSet, steps: tuple[Step, ...]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for step in steps:
            self._crash_point(f"before {step.do.name}")
            try:
                await self._actions.do(cs, step)
            except (KubeError, OutdatedError, NotLeadingError):
                STEPS.labels(step.do.name, "failed").inc()
                raise
            STEPS.labels(step.do.name, "done").inc()
            if step.do is Do.DELETE:
                RELEASE.observe(loop.time() - started)
            if step.do not in (Do.FLAG, Do.DELETE, Do.TELL):
                log.info("step done", extra=fields(set=cs.key, step=step.do.name, why=step.why))
            self._crash_point(f"after {step.do.name}")

    async def _run_measure(self) -> None:
        while True:
            QUEUE_DEPTH.set(len(self.queue))
            counts = dict.fromkeys((each.value for each in Phase if each.value not in ("", "?")), 0)
            for key in self._watch.set_keys():
                cs = self._watch.cocoon_set(key)
                if cs is not None and is_ours(cs) and cs.phase.value in counts:
                    counts[cs.phase.value] += 1
            for phase, count in counts.items():
                SETS.labels(phase).set(count)
            await asyncio.sleep(self._pace.measure)
