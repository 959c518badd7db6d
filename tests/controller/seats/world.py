"""One set, its pod, a runtime, a scheduler, a registry and an agent, in memory: what plans are carried out on.

Each part does one small thing when it is told to, so that a test can put any order of things between two steps of a
plan. The VM's state is its `life`: a number that a fresh boot makes anew and that snapshots carry.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from controller.seats.model import (
    CocoonSet,
    Copies,
    Lifecycle,
    ManifestAnswer,
    Phase,
    Pod,
    PodRead,
    RegistryAnswer,
    Situation,
)
from controller.seats.plan import plan
from controller.seats.steps import Do, Step


class LostError(AssertionError):
    """Something happened that must never happen."""


class StopError(Exception):
    """The step cannot be done as it was planned; plan anew."""


@dataclass
class World:
    """The truth. `vm` is the life of the VM that runs or sleeps with the pod, `tag` and `copy` those of snapshots.

    `lossy`: the registry has lost a tag by itself, so that a runtime may find none. `given_up`: a person deleted the VM
    that ran last, after it had come up, and nothing was made since.
    """

    cocoon_set: CocoonSet = field(default_factory=lambda: CocoonSet("ns", "web", "set"))
    pod: Pod | None = None
    vm: int | None = None
    tag: int | None = None
    copy: int | None = None
    life: int | None = None
    boots: int = 0
    registry_works: bool = True
    lossy: bool = False
    given_up: bool = False
    versions: int = 1
    seen_set: CocoonSet | None = None
    seen_pods: tuple[Pod, ...] = ()

    # The world around the controller.

    def ask(self, *, suspended: bool) -> None:
        """The user asks for something; the generation counts changes."""
        cs = self.cocoon_set
        if cs.suspended is not suspended:
            self.cocoon_set = replace(cs, suspended=suspended, generation=cs.generation + 1)

    def edit(self) -> None:
        """The user changes something else in the spec."""
        self.cocoon_set = replace(self.cocoon_set, generation=self.cocoon_set.generation + 1)

    def lose(self) -> None:
        """The registry loses what it has."""
        if self.tag is not None:
            self.tag, self.lossy = None, True

    def collect(self) -> None:
        """The host gives its copy up, as under disk pressure."""
        if self.pod is None:
            self.copy = None

    def vanish(self) -> None:
        """A person deletes the pod, and the VM with it."""
        if self.pod is not None and self.vm is not None:
            self.given_up = self.pod.vm_live and not self.pod.asleep
            self.pod, self.vm = None, None

    def show(self) -> None:
        """Watches bring the controller's copies up to date."""
        self.seen_set, self.seen_pods = self.cocoon_set, (self.pod,) if self.pod is not None else ()

    def schedule(self) -> None:
        """The scheduler binds the pod."""
        if self.pod is not None and not self.pod.node and not self.pod.terminating:
            self._change(node="a")

    def runtime(self) -> None:
        """The runtime does the next thing for the pod's VM."""
        pod = self.pod
        if pod is None or not pod.node:
            return
        if pod.terminating:
            self.pod, self.vm = None, None
        elif pod.hibernates and pod.lifecycle is Lifecycle.READY:
            self._change(lifecycle=Lifecycle.HIBERNATING, observed_generation=pod.stamped_generation)
        elif pod.hibernates and pod.lifecycle is Lifecycle.HIBERNATING:
            if self.registry_works:
                self.copy = self.tag = self.vm
                self._change(
                    lifecycle=Lifecycle.HIBERNATED,
                    observed_generation=pod.stamped_generation,
                    vm_id="",
                    running=False,
                )
        elif pod.lifecycle is Lifecycle.OTHER:
            self._begin(pod)
        elif pod.asleep and not pod.hibernates:
            # What sleeps is in its snapshot; one that was not written yet still runs.
            if pod.lifecycle is Lifecycle.HIBERNATED and self.tag is None and not self.lossy:
                raise LostError("the tag was deleted under a VM that sleeps")
            self._live(pod)
        elif pod.observed_generation != pod.stamped_generation:
            self._change(observed_generation=pod.stamped_generation)

    def _begin(self, pod: Pod) -> None:
        if not pod.restores:
            self.boots += 1
            self.vm = self.boots
            if self.life is None:
                self.life = self.vm
        elif self.registry_works:
            if self.tag is None:
                if not self.lossy:
                    raise LostError("a pod that restores was made and its snapshot deleted")
                return
            self.vm = self.tag
        else:
            return
        self._live(pod)

    def _live(self, pod: Pod) -> None:
        self._change(
            lifecycle=Lifecycle.READY,
            observed_generation=pod.stamped_generation,
            vm_id="vm",
            running=True,
        )

    def _change(self, **fields: object) -> None:
        assert self.pod is not None
        self.versions += 1
        self.pod = replace(self.pod, resource_version=str(self.versions), **fields)  # type: ignore[arg-type]  # as named

    # The controller.

    def situation(self) -> Situation:
        """What a controller that has just started, or has waited, knows."""
        return Situation(self.seen_set or self.cocoon_set, self.seen_pods)

    def decide(self, situation: Situation) -> tuple[Situation, tuple[Step, ...]]:
        """Ask whatever a plan asks for, and return what it does then."""
        for _ in range(10):
            steps = plan(situation).steps
            if not steps or not steps[0].do.asks:
                return situation, steps
            situation = self._answer(situation, steps[0])
        raise LostError("a plan that only asks")

    def _answer(self, situation: Situation, step: Step) -> Situation:
        if step.do is Do.READ_SET:
            return replace(situation, cocoon_set=self.cocoon_set, set_read=True)
        if step.do is Do.READ_POD:
            return replace(situation, pod_read=PodRead(self.pod))
        if step.do is Do.ASK_AGENTS:
            return replace(situation, copies=Copies(("a",) if self.copy is not None else ()))
        answer = RegistryAnswer.UNKNOWN
        if self.registry_works:
            answer = RegistryAnswer.PRESENT if self.tag is not None else RegistryAnswer.ABSENT
        return replace(situation, manifests=situation.manifests | {step.vm_name: ManifestAnswer(answer)})

    def do(self, planned: CocoonSet, step: Step) -> None:  # noqa: C901 - one arm for each kind of step
        """Do one step as the API server, the registry and the agents would."""
        pod = self.pod
        is_same = pod is not None and step.pod is not None and pod.uid == step.pod.uid
        match step.do:
            case Do.STATUS:
                assert step.status is not None
                self.cocoon_set = replace(
                    self.cocoon_set,
                    phase=step.status.phase,
                    conditions=step.status.conditions,
                    agents=step.status.agents,
                    observed_generation=planned.generation,
                )
            case Do.HIBERNATE | Do.RESUME:
                if not is_same:
                    raise StopError
                told = step.do is Do.HIBERNATE
                self._change(hibernates=told, keeps=False, stamped_generation=planned.generation)
            case Do.STASH:
                self.cocoon_set = replace(self.cocoon_set, stash=step.node)
                if not self.cocoon_set.suspended:
                    raise StopError
            case Do.FLAG if is_same:
                self._change(keeps=True)
            case Do.DELETE if is_same:
                self._delete()
            case Do.DELETE_UNBOUND if is_same:
                assert step.pod is not None
                assert pod is not None
                if pod.resource_version != step.pod.resource_version:
                    raise StopError
                self.pod = None
            case Do.CREATE:
                self._create(planned, step)
            case Do.CLEAR_STASH:
                self.cocoon_set = replace(self.cocoon_set, stash="", discard=False)
            case Do.DROP_TAG:
                if not self.registry_works:
                    raise StopError
                self._drop_tag()
            case _:
                pass

    def _delete(self) -> None:
        assert self.pod is not None
        if self.pod.terminating:
            return
        sleeps = self.pod.lifecycle is Lifecycle.HIBERNATED
        if self.vm is not None and not (sleeps and self.tag == self.vm):
            raise LostError("a seat was freed before the snapshot was safe")
        self._change(terminating=True)

    def _create(self, planned: CocoonSet, step: Step) -> None:
        if self.cocoon_set.suspended:
            raise StopError
        if self.pod is not None:
            return
        if not step.restores and (self.tag is not None or self.copy is not None):
            raise LostError("a VM was made fresh over a snapshot")
        if not step.restores and self.cocoon_set.stash:
            raise LostError("a VM that hibernated was made fresh")
        # A first boot has nothing that a crash could make wrong, and a copy of the set may be behind.
        if step.restores and self.cocoon_set.phase is not Phase.WAKING:
            raise LostError("a pod was made before the phase said so")
        self.versions += 1
        self.given_up = False
        self.pod = Pod(
            "ns",
            "web-0",
            f"pod-{self.versions}",
            set_uid="set",
            resource_version=str(self.versions),
            vm_name="vk-ns-web-0",
            restores=step.restores,
            stamped_generation=planned.generation,
        )

    def _drop_tag(self) -> None:
        is_live = self.pod is not None and self.pod.vm_live and not self.pod.asleep and self.vm is not None
        # Whoever deletes a VM that has come up gives it up, a moment before its old snapshot goes as well as after.
        if not is_live and not self.given_up:
            raise LostError("the tag was deleted while no VM ran")
        self.tag = None
