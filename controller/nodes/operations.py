"""What a person can ask for about one Node: accept another machine, forget a host, take everything of ours off.

Pure, like the plan: each returns the requests it would send, so that a command can show them, ask, and then send them.
`controller.nodes.operator` reads what they are made from and carries them out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controller.nodes.conditions import is_ours
from controller.nodes.model import ACCEPTED_MACHINE, CONTROLLER, REGISTERED_BY, REGISTRATION, LiveNode
from controller.nodes.steps import Step, lease_path, node_path


@dataclass(frozen=True, slots=True)
class Operation:
    """Requests in order, or a stable `refusal` reason with an `explanation` for people. No steps: nothing to do."""

    name: str
    steps: tuple[Step, ...] = ()
    refusal: str = ""
    explanation: str = ""

    def as_object(self) -> Mapping[str, Any]:
        """The operation as a plain object for people and machines."""
        shown: dict[str, Any] = {"node": self.name}
        if self.refusal:
            shown |= {"refused": self.refusal, "explanation": self.explanation}
        return shown | {"requests": [step.as_object() for step in self.steps]}


@dataclass(frozen=True, slots=True)
class ForgetFacts:
    """What decides whether a Node may be forgotten. `agent_answers` is found out by asking, right before."""

    name: str
    live: LiveNode | None
    has_lease: bool
    agent_answers: bool


def accept(name: str, live: LiveNode | None, machine_id: str) -> Operation:
    """Let the machine with this id speak for the Node from now on; remembered in an annotation of the Node."""
    if live is None:
        return _refuse(name, "NoNode", f"There is no Node {name}; an agent's report registers it, nothing to accept.")
    if live.is_kubelets:
        return _refuse(name, "KubeletNode", f"A kubelet runs Node {name}; no agent may speak for it.")
    if not machine_id:
        return _refuse(
            name, "NoMachineID", f"No agent reports a machine id for Node {name}; there is nothing to accept."
        )
    if live.expected_machine_id == machine_id:
        return Operation(name)
    metadata = {"resourceVersion": live.resource_version, "annotations": {ACCEPTED_MACHINE: machine_id}}
    reason = f"machine {machine_id} may speak for this Node; it belonged to {live.expected_machine_id or 'none'}"
    return Operation(
        name, (Step("merge-patch", node_path(name), {"metadata": metadata}, reason, field_manager=CONTROLLER),)
    )


def forget(facts: ForgetFacts) -> Operation:
    """Remove the Node and the Lease of a host that is gone. The API server then removes the pods bound to it."""
    name, live = facts.name, facts.live
    if facts.agent_answers:
        return _refuse(
            name,
            "AgentAnswers",
            f"The agent of Node {name} answers, or did a moment ago; stop it first, or it registers again.",
        )
    if live is not None and live.is_kubelets:
        return _refuse(name, "KubeletNode", f"A kubelet runs Node {name}; it is not ours to remove.")
    if live is not None and not live.is_ours:
        return _refuse(name, "NotOurs", f"Node {name} was registered by somebody else; it is theirs to remove.")
    steps: list[Step] = []
    if live is not None:
        body = {"uid": live.uid}
        steps.append(Step("delete", node_path(name), body, "its host is gone; pods bound to it are removed with it"))
    if facts.has_lease:
        steps.append(Step("delete", lease_path(name), None, "its host is gone"))
    return Operation(name, tuple(steps))


def prune(name: str, live: LiveNode | None) -> Operation:
    """Take our labels, conditions, annotations and managed fields off; capacity, Ready and what others wrote stay.

    The first step makes the Node no longer ours, so a controller that still runs does not put things back. Each step
    rests on the object the one before left, so the operation is made again after each; the last one, which takes our
    name out of the managed fields, comes when nothing else is left.
    """
    if live is None:
        return Operation(name)
    if live.is_kubelets and not live.owned():
        return Operation(name)
    steps = [*_release_metadata(live), *_release_conditions(live)]
    if not steps:
        steps = _release_managed_fields(live)
    return Operation(name, tuple(steps))


def _release_metadata(live: LiveNode) -> list[Step]:
    owned = live.owned()
    annotations = [key for key in (REGISTERED_BY, ACCEPTED_MACHINE) if key in live.annotations]
    labels = [
        key for key in sorted(live.labels) if f"label:{key}" in owned and not live.is_owned_by_others(f"label:{key}")
    ]
    if not annotations and not labels:
        return []
    metadata: dict[str, Any] = {"resourceVersion": live.resource_version}
    if annotations:
        metadata["annotations"] = dict.fromkeys(annotations)
    if labels:
        metadata["labels"] = dict.fromkeys(labels)
    names = frozenset(f"label:{key}" for key in labels)
    reason = f"remove {', '.join((*annotations, *labels))}"
    return [
        Step(
            "merge-patch", node_path(live.name), {"metadata": metadata}, reason, field_manager=CONTROLLER, writes=names
        )
    ]


def _release_conditions(live: LiveNode) -> list[Step]:
    owned = live.owned()
    ours = {
        at: item.type
        for at, item in enumerate(live.conditions)
        if is_ours(item.type) and f"condition:{item.type}" in owned
    }
    if not ours:
        return []
    # By their places, last first. An apply without any condition would take the whole list off, with all that nobody
    # is the owner of: whoever writes a value that is there already does not become its owner.
    body = [{"op": "test", "path": "/metadata/resourceVersion", "value": live.resource_version}]
    body += [{"op": "remove", "path": f"/status/conditions/{at}"} for at in sorted(ours, reverse=True)]
    reason = f"remove conditions {', '.join(sorted(ours.values()))}; everything else stays"
    return [Step("json-patch", node_path(live.name, "status"), body, reason)]


def _release_managed_fields(live: LiveNode) -> list[Step]:
    """Give up ownership without touching a value: entries go by their place in the list, last first."""
    places = [at for at, owner in enumerate(live.owners) if owner.manager in (CONTROLLER, REGISTRATION)]
    if not places:
        return []
    body = [{"op": "test", "path": "/metadata/resourceVersion", "value": live.resource_version}]
    body += [{"op": "remove", "path": f"/metadata/managedFields/{at}"} for at in reversed(places)]
    return [Step("json-patch", node_path(live.name), body, "give up our managed fields; no value changes")]


def _refuse(name: str, refusal: str, explanation: str) -> Operation:
    return Operation(name, refusal=refusal, explanation=explanation)


@dataclass(frozen=True, slots=True)
class Done:
    """What an operation did: the steps that were sent, or why none was."""

    operation: Operation
    sent: tuple[Step, ...] = field(default_factory=tuple)
