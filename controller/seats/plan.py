"""The state machine of a seat: what is known of one set → the next steps in order, each with its reason.

Why this exists: two mistakes cannot be undone, a seat freed before the VM's snapshot is safe and a VM booted fresh over
a snapshot that exists. So there is one function from what is known to what is done next. It never guesses: what it has
to know first it asks for as a step, and is asked again with the answer.

It may be interrupted between any two steps: everything that matters is in the set, its pods and the registry, and what
the next step must not forget stands in the set's status before that step is done.
"""

from dataclasses import replace

from common.vm_names import pod_vm_name
from controller.seats.model import CocoonSet, Lifecycle, ManifestAnswer, Phase, Pod, Reason, RegistryAnswer, Situation
from controller.seats.status import main_pod, status_steps
from controller.seats.steps import Do, Plan, Step

GATE_SECONDS = 5.0
LOST_SECONDS = 30.0
NO_SEAT = "the set has no pod and holds no seat"
COMING_UP = "waits for the VM to come up"
GOING_DOWN = "waits for the VM to hibernate"
_ON_THE_WAY = (Lifecycle.CREATING, Lifecycle.READY, Lifecycle.HIBERNATING, Lifecycle.OTHER)
_IN_FLIGHT = (Phase.SUSPENDING, Phase.SUSPENDED, Phase.WAKING)


def is_ours(cs: CocoonSet) -> bool:
    """Whether this set's seat is this controller's business, also when its policy was edited while it slept."""
    begun = cs.reason is not None and (cs.phase in _IN_FLIGHT or cs.reason is Reason.DROPPING_SNAPSHOT)
    return bool(cs.stash) or begun or (cs.releases and cs.main_only)


def plan(s: Situation) -> Plan:
    """Return the next steps; a plan whose first step asks consists of that step alone."""
    cs = s.cocoon_set
    if cs.deleting or not is_ours(cs):
        return Plan()
    if not s.registry_configured:
        return _without_registry(s)
    if not s.hibernations_known:
        return Plan(again_seconds=GATE_SECONDS)
    if s.older_namesake:
        # Namespaces and names with dashes can make one VM name; its snapshot is that of whoever was there first.
        why = f"VM name {cs.vm_name} is that of the older set {s.older_namesake}; choose another name"
        steps = status_steps(s, cs.phase, Reason.VM_NAME_TAKEN, why)
        return Plan((*steps, _tell("VmNameTaken", why)), LOST_SECONDS)
    return _suspend(s) if cs.suspended else _wake(s)


def gate_problem(cs: CocoonSet, pod: Pod) -> str:
    """Return what keeps a bound pod from passing the gate, the registry apart; empty when nothing does."""
    if pod.left_to_hibernation:
        return f"a CocoonHibernation object targets pod {pod.name}"
    if pod.vm_name != pod_vm_name(pod.namespace, pod.name):
        return f"pod {pod.name} claims VM {pod.vm_name}, which is not its own"
    if not pod.hibernates:
        return f"pod {pod.name} is not told to hibernate yet"
    if pod.lifecycle is not Lifecycle.HIBERNATED:
        return f"the VM of pod {pod.name} is {pod.lifecycle.value or 'not known to be hibernating'}"
    if pod.observed_generation < cs.generation:
        return f"the VM of pod {pod.name} hibernated for generation {pod.observed_generation}, not {cs.generation}"
    return ""


def _without_registry(s: Situation) -> Plan:
    """Nothing can be known to be safe, so nothing is put to sleep, deleted or created."""
    cs = s.cocoon_set
    if cs.phase is Phase.SUSPENDED and cs.suspended:
        return Plan()
    why = "hibernatePolicy release needs a registry, and the controller has none configured"
    if cs.reason in (Reason.RESTORING, Reason.DROPPING_SNAPSHOT):
        return Plan((_tell("SeatReleaseFailed", why),))
    if main_pod(s) is not None and not cs.suspended and cs.phase not in _IN_FLIGHT:
        return Plan()
    steps = status_steps(s, cs.phase, Reason.REGISTRY_NOT_CONFIGURED, why)
    return Plan((*steps, _tell("SeatReleaseFailed", why)) if steps else ())


def _suspend(s: Situation) -> Plan:
    cs = s.cocoon_set
    pods = _live_pods(s)
    if _is_in_doubt(s, pods):
        return _ask(Do.READ_POD, "only an uncached read tells whether the main pod is there")
    if not pods:
        return Plan(status_steps(s, Phase.SUSPENDED, Reason.SUSPENDED, NO_SEAT))
    untold = [pod for pod in pods if _is_to_be_told(cs, pod)]
    if untold:
        why = "the set is suspended"
        steps = _suspending(s, GOING_DOWN)
        return Plan((*steps, *(Step(Do.HIBERNATE, why, pod=pod) for pod in untold)), GATE_SECONDS)
    if waiting := _held(s, pods):
        return waiting
    if not cs.releases and not cs.stash:
        why = "the VM sleeps; the policy keeps its seat"
        return Plan(status_steps(s, Phase.SUSPENDED, Reason.SUSPENDED, why, keeps_seat=True))
    if not s.set_read:
        return _ask(Do.READ_SET, "before the first delete the set must still be suspended")
    return Plan(_release(s, pods))


def _is_in_doubt(s: Situation, pods: tuple[Pod, ...]) -> bool:
    """Whether our copy contradicts the phase: what was just deleted or created may not be in it yet."""
    if s.pod_read is not None:
        return False
    if not pods:
        return s.cocoon_set.phase is not Phase.SUSPENDED
    return s.cocoon_set.phase is Phase.SUSPENDED and any(pod.name == s.cocoon_set.pod_name for pod in pods)


def _held(s: Situation, pods: tuple[Pod, ...]) -> Plan | None:
    """What a set waits for, or asks, whose pods have not all passed the gate; None when they have.

    A pod that was never bound has no VM, and so nothing to wait for.
    """
    waiting = [pod for pod in pods if pod.node or pod.left_to_hibernation]
    problem = next(filter(None, (gate_problem(s.cocoon_set, pod) for pod in waiting)), "")
    if problem:
        has_failed = any(pod.lifecycle is Lifecycle.FAILED for pod in waiting)
        tell = (_tell("HibernateFailed", problem),) if has_failed else ()
        # What every hibernation goes through is told in one word; each change would be a write.
        is_usual = all(pod.lifecycle in _ON_THE_WAY and not pod.left_to_hibernation for pod in waiting)
        message = GOING_DOWN if is_usual else f"waits: {problem}"
        return Plan((*_suspending(s, message), *tell), GATE_SECONDS)
    for pod in waiting:
        answer = s.manifests.get(pod.vm_name)
        if answer is None:
            return _ask(Do.ASK_REGISTRY, "the VM hibernated; is its snapshot in the registry?", pod.vm_name)
        if answer.answer is not RegistryAnswer.PRESENT:
            return Plan(_suspending(s, f"waits: {_not_seen(pod.vm_name, answer)}"), GATE_SECONDS)
    return None


def _is_to_be_told(cs: CocoonSet, pod: Pod) -> bool:
    """Whether a bound pod has not been told to hibernate for the set's present generation."""
    told = pod.hibernates and pod.stamped_generation >= cs.generation
    return bool(pod.node) and not told and not pod.left_to_hibernation


def _suspending(s: Situation, message: str) -> tuple[Step, ...]:
    return status_steps(s, Phase.SUSPENDING, Reason.HIBERNATING, message)


def _release(s: Situation, pods: tuple[Pod, ...]) -> tuple[Step, ...]:
    """Free the seats: the stash first, then flag and delete per pod, then the phase."""
    cs = s.cocoon_set
    main = next((pod for pod in pods if pod.name == cs.pod_name and pod.node), None)
    steps: list[Step] = []
    if main is not None and cs.stash != main.node:
        steps.append(Step(Do.STASH, f"the VM hibernated on {main.node}", node=main.node))
    for pod in pods:
        if pod.node:
            why = f"the snapshot of VM {pod.vm_name} is in the registry"
            steps.append(Step(Do.FLAG, f"{why}; the copy on {pod.node} is to stay", pod=pod))
            steps.append(Step(Do.DELETE, f"{why}; the seat is free", pod=pod))
        else:
            steps.append(Step(Do.DELETE_UNBOUND, "it never ran, and must not start while the set sleeps", pod=pod))
    done = replace(s, pods=tuple(pod for pod in s.pods if pod not in pods), pod_read=None)
    return (*steps, *status_steps(done, Phase.SUSPENDED, Reason.SUSPENDED, NO_SEAT))


def _wake(s: Situation) -> Plan:
    cs = s.cocoon_set
    main = main_pod(s)
    if main is None:
        return _start(s)
    if main.terminating:
        if cs.phase not in (Phase.SUSPENDING, Phase.SUSPENDED):
            return Plan(again_seconds=GATE_SECONDS)
        why = f"waits for the pod before to be gone from {main.node or 'the API'}"
        return Plan(status_steps(s, Phase.WAKING, Reason.POD_ENDING, why), GATE_SECONDS)
    if main.set_uid != cs.uid:
        why = f"pod {main.name} belongs to somebody else"
        steps = status_steps(s, _waking(cs), Reason.NAME_TAKEN, why)
        return Plan((*steps, _tell("PodNameTaken", why)), LOST_SECONDS)
    if main.ended:
        why = f"pod {main.name} ended ({main.phase}); delete it to have the VM started again"
        steps = status_steps(s, Phase.FAILED, Reason.POD_ENDED, why)
        return Plan((*steps, *((_tell("MainPodEnded", why),) if steps else ())))
    if main.hibernates:
        return _resume(s, main)
    if main.vm_live and not main.asleep:
        return _finish(s, main)
    return _await(s, main)


def _resume(s: Situation, main: Pod) -> Plan:
    """The pod sleeps on its seat: it was not deleted yet, or our copy is behind."""
    cs = s.cocoon_set
    if main.left_to_hibernation or cs.phase not in _IN_FLIGHT:
        return Plan()
    if s.pod_read is None:
        return _ask(Do.READ_POD, "it may be deleted already")
    why = "the set was woken before its pod was deleted"
    return Plan((*status_steps(s, Phase.WAKING, Reason.RESUMING, why), Step(Do.RESUME, why, pod=main)), GATE_SECONDS)


def _await(s: Situation, main: Pod) -> Plan:
    """The main pod is there and its VM is not up yet."""
    cs = s.cocoon_set
    if cs.phase is Phase.RUNNING:
        steps = status_steps(s, Phase.RUNNING, cs.reason or Reason.RUNNING, "the VM is not up at the moment")
        return Plan(steps)
    if cs.reason in (Reason.HIBERNATING, Reason.SUSPENDED, Reason.RESUMING):
        # It may have been told to hibernate: the tag in the registry may be all there is of its VM.
        reason = Reason.RESUMING
    else:
        reason = Reason.RESTORING if main.restores else Reason.BOOTING
    phase = _waking(cs) if reason is Reason.BOOTING else Phase.WAKING
    if main.unschedulable:
        why = f"pod {main.name} fits nowhere: {main.unschedulable}"
        steps = status_steps(s, phase, reason, why)
        return Plan((*steps, *((_tell("WakeNoCapacity", why),) if steps else ())), GATE_SECONDS)
    return Plan(status_steps(s, phase, reason, COMING_UP), GATE_SECONDS)


def _finish(s: Situation, main: Pod) -> Plan:
    """The VM is live."""
    cs = s.cocoon_set
    clear: tuple[Step, ...] = ()
    restored = cs.reason is Reason.RESTORING and main.restores
    if cs.stash or cs.discard:
        placement = ("hint-node" if cs.stash == main.node else "pool") if restored and cs.stash else ""
        clear = (Step(Do.CLEAR_STASH, f"the VM is live on {main.node}", placement=placement),)
    running = status_steps(s, Phase.RUNNING, Reason.RUNNING, "the VM is live")
    if not restored and cs.reason is not Reason.DROPPING_SNAPSHOT:
        return Plan((*clear, *running))
    why = "the VM is live; its hibernate snapshot is stale"
    dropping = status_steps(s, Phase.RUNNING, Reason.DROPPING_SNAPSHOT, why)
    if main.left_to_hibernation:
        return Plan((*clear, *dropping))
    return Plan((*clear, *dropping, Step(Do.DROP_TAG, why, vm_name=cs.vm_name), *running))


def _start(s: Situation) -> Plan:
    """There is no main pod: restore the VM, boot it, or find that its snapshot is lost."""
    cs = s.cocoon_set
    answer = s.manifests.get(cs.vm_name)
    if answer is None:
        return _ask(Do.ASK_REGISTRY, "is there a snapshot to wake from?", cs.vm_name)
    if answer.answer is RegistryAnswer.UNKNOWN:
        why = f"a snapshot may exist: {_not_seen(cs.vm_name, answer)}"
        steps = status_steps(s, _waking(cs), Reason.REGISTRY_UNAVAILABLE, why)
        return Plan((*steps, _tell("RegistryUnavailable", why)), GATE_SECONDS)
    if answer.answer is RegistryAnswer.PRESENT:
        return _create(s, "its hibernate snapshot is in the registry", Phase.WAKING, Reason.RESTORING)
    if s.pod_read is None:
        # A wake that is over leaves no snapshot either: our copy may be behind. With one, a pod there is found anyway.
        return _ask(Do.READ_POD, "the registry has no snapshot; is there really no pod?")
    if s.copies is None:
        return _ask(Do.ASK_AGENTS, "the registry has no snapshot; has an agent?", cs.vm_name)
    if not cs.stash and not s.copies.nodes and not s.copies.complete:
        return Plan(again_seconds=GATE_SECONDS)
    if not cs.stash and not s.copies.nodes:
        return _create(s, "no snapshot of the VM was ever made", _waking(cs), Reason.BOOTING)
    if cs.discard:
        return _create(s, "a person gave its lost snapshot up", _waking(cs), Reason.BOOTING)
    held = (
        f"agents of {', '.join(s.copies.nodes)} hold a copy" if s.copies.nodes else "no agent that answers has a copy"
    )
    hibernated = f"the VM hibernated on {cs.stash}" if cs.stash else "the VM may have hibernated"
    why = f"{hibernated}, the registry has no snapshot of it; {held}"
    steps = status_steps(s, Phase.WAKING, Reason.SNAPSHOT_MISSING, why)
    keep = (Step(Do.KEEP_COPIES, why, vm_name=cs.vm_name, nodes=s.copies.nodes),) if s.copies.nodes else ()
    return Plan((*steps, _tell("HibernateSnapshotMissing", why), *keep), LOST_SECONDS)


def _create(s: Situation, why: str, phase: Phase, reason: Reason) -> Plan:
    """Create the main pod, after the phase says so: whoever follows a crash goes on with a wake."""
    restores = reason is Reason.RESTORING
    create = Step(Do.CREATE, why, node=s.cocoon_set.stash if restores else "", restores=restores)
    return Plan((*status_steps(s, phase, reason, COMING_UP), create), GATE_SECONDS)


def _waking(cs: CocoonSet) -> Phase:
    """The phase of a set whose pod is to come: a wake, unless it never was suspended."""
    return Phase.WAKING if cs.phase in _IN_FLIGHT or cs.stash else Phase.PENDING


def _live_pods(s: Situation) -> tuple[Pod, ...]:
    """The set's own pods that hold a seat or will: neither going nor ended; the main one as it was read."""
    cs = s.cocoon_set
    pods = [pod for pod in s.pods if s.pod_read is None or pod.name != cs.pod_name]
    if s.pod_read is not None and s.pod_read.pod is not None:
        pods.append(s.pod_read.pod)
    own = [pod for pod in pods if pod.set_uid == cs.uid and not pod.terminating and not pod.ended]
    return tuple(sorted(own, key=lambda pod: pod.name))


def _not_seen(vm_name: str, answer: ManifestAnswer) -> str:
    said = "the registry does not say" if answer.answer is RegistryAnswer.UNKNOWN else "the registry has none"
    return f"hibernate snapshot of {vm_name}: {said}" + (f" ({answer.why})" if answer.why else "")


def _ask(do: Do, why: str, vm_name: str = "") -> Plan:
    return Plan((Step(do, why, vm_name=vm_name),))


def _tell(event: str, why: str) -> Step:
    return Step(Do.TELL, why, event=event, warning=True)
