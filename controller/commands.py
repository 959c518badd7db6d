"""What the commands other than `run` do: ask agents and the API server once, and say what was found or done.

Why this exists: the command line only turns words into settings; the rules are in `controller.nodes`. In between stand
the questions a command has to ask before it may act.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from common.program import StartError
from controller.agents.survey import AgentAnswer
from controller.app import ask_agents, node_settings, open_client
from controller.config import Settings
from controller.kube.client import KubeClient
from controller.kube.errors import NotFound
from controller.nodes.claims import Claim, choose
from controller.nodes.conflicts import FieldMemory, ceded_fields
from controller.nodes.live import LeaseObject, NodeObject, live_lease, live_node
from controller.nodes.model import CONTROLLER, ROLE_LABEL, Instant, LiveLease, LiveNode
from controller.nodes.operations import Done
from controller.nodes.operator import NodeOperator
from controller.nodes.plan import PlanInput, plan_node
from controller.nodes.steps import LEASES_PATH, NODES_PATH, lease_path

_ASK_SECONDS = 10.0
# Leases are renewed every 10 s while an agent was heard from within 30 s.
_FRESH_LEASE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One Node of the fleet and its Lease, as the API server has them."""

    live: LiveNode
    lease: LiveLease | None


async def plan_all(settings: Settings, wait_seconds: float) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the plan for every agent's Node as plain objects, and why there is none for others."""
    async with open_client(settings) as client:
        answers, problems = await ask_agents(settings, client, wait_seconds)
        for answer in answers:
            if answer.report is None:
                problems.append(f"{answer.node_name or 'an agent'} at {answer.address}: {answer.problem}")
        by_name: dict[str, list[AgentAnswer]] = {}
        for answer in answers:
            if answer.report is not None:
                by_name.setdefault(answer.node_name, []).append(answer)
        plans = [await _plan(settings, client, name, found) for name, found in sorted(by_name.items())]
    return plans, problems


async def list_nodes(settings: Settings) -> list[FleetNode]:
    """Return every Node that is ours, adopted, or carries our role label, by name."""
    async with open_client(settings) as client:
        leases = {
            lease.metadata.name: live_lease(lease) for lease in await client.list_objects(LEASES_PATH, LeaseObject)
        }
        nodes = [live_node(item) for item in await client.list_objects(NODES_PATH, NodeObject)]
    fleet = [live for live in nodes if live.is_ours or ROLE_LABEL in live.labels or live.owned()]
    return [FleetNode(live, leases.get(live.name)) for live in sorted(fleet, key=lambda live: live.name)]


async def accept(settings: Settings, name: str, machine_id: str | None) -> str:
    """Let the machine that answers as `name` (the one with `machine_id` if several do) speak for the Node."""
    async with open_client(settings) as client:
        answers, problems = await ask_agents(settings, client, _ASK_SECONDS, only=name)
        found = {a.report.host.machine_id for a in answers if a.report is not None and a.node_name == name}
        if machine_id is None and len(found) > 1:
            listed = ", ".join(sorted(found))
            raise StartError(f"several machines answer as {name}: {listed}; name one with --machine-id", status=2)
        if machine_id is not None and machine_id not in found:
            found = set()
        if not found:
            why = "; ".join([*(a.problem for a in answers if a.problem), *problems]) or "no agent is configured for it"
            raise StartError(f"no such machine answers as {name}: {why}")
        done = await NodeOperator(client).accept(name, machine_id or found.pop())
    return _told(done, f"Node {name}: the machine that answers was accepted", f"Node {name}: nothing to accept")


async def check_forgettable(settings: Settings, name: str) -> None:
    """Raise `StartError` unless the Node may be forgotten and there is something to forget."""
    async with open_client(settings) as client:
        answers = await _is_answering(settings, client, name)
        operation = await NodeOperator(client).plan_forget(name, agent_answers=answers)
    if operation.refusal:
        raise StartError(operation.explanation)
    if not operation.steps:
        raise StartError(f"there is no Node and no Lease {name}")


async def forget(settings: Settings, name: str) -> str:
    """Remove Node and Lease; asks the agent again, because people take their time to say yes."""
    async with open_client(settings) as client:
        answers = await _is_answering(settings, client, name)
        done = await NodeOperator(client).forget(name, agent_answers=answers)
    return _told(done, f"Node {name}: removed, with its Lease", f"Node {name}: nothing to remove")


async def prune(settings: Settings, names: Sequence[str]) -> list[str]:
    """Take everything of ours off these Nodes, of all that carry anything when none is named."""
    async with open_client(settings) as client:
        operator = NodeOperator(client)
        told = []
        for name in names or await operator.written_nodes():
            done = await operator.prune(name)
            nothing = f"Node {name}: nothing of ours on it"
            if not done.sent and await operator.read(name) is None:
                nothing = f"there is no Node {name}"
            told.append(_told(done, f"Node {name}: pruned", nothing))
    return told or ["no Node carries anything of ours"]


async def _plan(settings: Settings, client: KubeClient, name: str, answers: Sequence[AgentAnswer]) -> dict[str, Any]:
    now = Instant(datetime.now(UTC), time.monotonic())
    claims = {a.address: Claim(now.monotonic, now.monotonic, a.report, connected=True) for a in answers}
    live = await NodeOperator(client).read(name)
    choice = choose(claims, live.expected_machine_id if live else "", None, now.monotonic)
    claim = claims.get(choice.agent or "")
    given = PlanInput(
        name=name,
        report=claim.report if claim else None,
        reachable=claim is not None,
        live=live,
        now=now,
        silence_reason=min(choice.refused.values(), default=""),
        lease=await _lease(client, name),
        settings=node_settings(settings),
        memory=FieldMemory(ceded=ceded_fields(live)),
    )
    shown = dict(plan_node(given).as_object())
    if choice.refused:
        shown["refusedAgents"] = dict(choice.refused)
    return shown


async def _is_answering(settings: Settings, client: KubeClient, name: str) -> bool:
    """Whether the agent answers us, or answered a running controller lately: it renews the Lease only then."""
    answers, _ = await ask_agents(settings, client, _ASK_SECONDS, only=name)
    if any(answer.node_name == name and answer.report is not None for answer in answers):
        return True
    lease = await _lease(client, name)
    if lease is None or lease.holder != CONTROLLER or lease.renewed_at is None:
        return False
    return (datetime.now(UTC) - lease.renewed_at).total_seconds() < _FRESH_LEASE_SECONDS


async def _lease(client: KubeClient, name: str) -> LiveLease | None:
    try:
        return live_lease(msgspec.json.decode(await client.get_bytes(lease_path(name)), type=LeaseObject))
    except NotFound:
        return None


def _told(done: Done, said: str, nothing: str) -> str:
    """Return the sentence for people. Raises `StartError` for a refusal."""
    if done.operation.refusal:
        raise StartError(done.operation.explanation)
    return said if done.sent else nothing
