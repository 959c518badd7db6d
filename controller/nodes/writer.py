"""Carries plans out and looks at what became of it.

After each write the plan is made again from the object the API answered with. A conflict, a Node that appeared or one
that vanished in between is no failure: it is read again and planned again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from controller.kube.client import JSON_PATCH, KubeClient
from controller.kube.errors import AlreadyExists, Conflict, InvalidRequest, KubeError, NotFound
from controller.nodes.live import parse_node
from controller.nodes.metrics import NODE_WRITES
from controller.nodes.model import LiveNode
from controller.nodes.plan import Plan
from controller.nodes.steps import Step, node_path

_ROUNDS = 8


class NotConvergedError(KubeError):
    """The Node still differs from what is wanted after several rounds of writing; tried again later."""

    default_reason = "NotConverged"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of carrying out a plan: the last plan (without steps), the Node as last seen, whether we wrote."""

    plan: Plan
    live: LiveNode | None
    wrote: bool


class NodeWriter:
    """Sends the steps of plans; the only place that writes Nodes."""

    def __init__(self, client: KubeClient) -> None:
        """Writes through `client`."""
        self._client = client

    async def read(self, name: str) -> LiveNode | None:
        """The Node as the API has it now, None when there is none."""
        try:
            return parse_node(await self._client.get_bytes(node_path(name)))
        except NotFound:
            return None

    async def converge(
        self,
        live: LiveNode | None,
        make_plan: Callable[[LiveNode | None], Plan],
        note: Callable[[Plan, LiveNode, frozenset[str]], None],
        name: str,
    ) -> Outcome:
        """Plan, write, look, until the plan has no steps.

        `note` hears after each round which plan it was, the Node after it and which fields were sent. Raises a
        KubeError when a request fails for good and NotConvergedError when the rounds run out.
        """
        wrote = False
        for _ in range(_ROUNDS):
            plan = make_plan(live)
            if not plan.steps:
                if live is not None:
                    note(plan, live, frozenset())
                return Outcome(plan, live, wrote)
            live, written = await self._carry_out(plan, live, name)
            wrote = wrote or bool(written)
            if live is not None:
                note(plan, live, written)
        raise NotConvergedError(f"Node {name} still differs from its agent's report after {_ROUNDS} rounds of writing")

    async def send(self, step: Step) -> bytes:
        """Send one step as it is."""
        try:
            answer = await self._request(step)
        except KubeError as exc:
            NODE_WRITES.labels(step.verb, exc.reason).inc()
            raise
        NODE_WRITES.labels(step.verb, "done").inc()
        return answer

    async def _carry_out(self, plan: Plan, live: LiveNode | None, name: str) -> tuple[LiveNode | None, frozenset[str]]:
        """Send the plan's steps until one no longer fits the object; the Node as last seen, and the fields sent."""
        written: frozenset[str] = frozenset()
        for step in plan.steps:
            if live is not None:
                present = {field for field, _ in live.fields()}
                if step.removes and not step.removes & present:
                    continue
                if not step.requires <= present:
                    break
            try:
                live = parse_node(await self.send(_meant_for(step, live)))
            except (Conflict, AlreadyExists, NotFound):
                return await self.read(name), written
            except InvalidRequest:
                # An apply to a Node that was deleted and created again is refused as a change of its UID.
                fresh = await self.read(name)
                if live is None or (fresh is not None and fresh.uid == live.uid):
                    raise
                return fresh, written
            written |= step.writes
        return live, written

    async def _request(self, step: Step) -> bytes:
        match step.verb:
            case "create":
                return await self._client.create(step.path, step.body, field_manager=step.field_manager)
            case "apply":
                return await self._client.apply(step.path, step.body, field_manager=step.field_manager)
            case "merge-patch":
                return await self._client.merge_patch(step.path, step.body, field_manager=step.field_manager)
            case "json-patch":
                return await self._client.patch(step.path, step.body, content_type=JSON_PATCH)
            case "delete":
                return await self._client.delete(step.path, uid=str((step.body or {}).get("uid", "")))


def _meant_for(step: Step, live: LiveNode | None) -> Step:
    """The step with the identity and version of the object as our own earlier step of the same plan left it."""
    if live is None or not isinstance(step.body, dict) or "metadata" not in step.body:
        return step
    metadata: dict[str, Any] = dict(step.body["metadata"])
    if step.verb == "apply":
        metadata["uid"] = live.uid
    if "resourceVersion" in metadata:
        metadata["resourceVersion"] = live.resource_version
    return replace(step, body={**step.body, "metadata": metadata})
