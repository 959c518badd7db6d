"""The bodies of the requests that bring a Node to what is wanted: one apply of labels, one of the status, removals.

An apply says everything its manager wants: what it leaves out is given up, and vanishes when nobody else owns it. So
what we own and do not decide about now is sent along as it is, with the resource version it was read at.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.nodes.conditions import WantedCondition, body_of, copy_of, says
from controller.nodes.model import CONTROLLER, Instant, LiveNode
from controller.nodes.steps import Step, node_path
from controller.nodes.wanted import Fields


@dataclass(frozen=True, slots=True)
class ConditionWork:
    """Conditions that should be there, the types of them to write now, and types of ours to take off."""

    wanted: tuple[WantedCondition, ...]
    due: frozenset[str]
    superfluous: frozenset[str]


def label_steps(live: LiveNode, fields: Fields) -> list[Step]:
    """The apply of the labels and the removal of what an apply cannot take off, as far as they are called for."""
    names = fields.of("label")
    path = node_path(live.name)
    steps: list[Step] = []
    due = [name for name in names if fields.calls_for_apply(name)]
    if due:
        labels, copied = _collect(fields, names)
        body = _object(live, {"labels": labels}, copied=copied)
        steps.append(Step("apply", path, body, _reason(due, fields), field_manager=CONTROLLER, writes=frozenset(due)))
    stubborn = [name for name in names if fields.calls_for_removal(name, live)]
    if stubborn:
        metadata = {"resourceVersion": live.resource_version, "labels": {_key(name): None for name in stubborn}}
        steps.append(_removal(path, {"metadata": metadata}, stubborn))
    return steps


def status_steps(live: LiveNode, fields: Fields, conditions: ConditionWork, now: Instant) -> list[Step]:
    """The apply of the status and the removal of amounts that somebody else wrote too, as far as they are called for.

    The apply requires the labels: a Node must not become Ready before whoever selects by label can tell what it is.
    """
    path = node_path(live.name, "status")
    amounts = fields.of("capacity", "allocatable")
    due = [name for name in (*amounts, *fields.of("address", "nodeInfo")) if fields.calls_for_apply(name)]
    due += [f"condition:{name}" for name in sorted(conditions.due | conditions.superfluous)]
    steps: list[Step] = []
    if due:
        body = _status_body(live, fields, conditions, now)
        labels = frozenset(name for name in fields.of("label") if fields.applied(name)[0] is not None)
        steps.append(
            Step(
                "apply",
                path,
                body,
                _reason(due, fields),
                field_manager=CONTROLLER,
                writes=frozenset(due),
                requires=labels,
            )
        )
    stubborn = [name for name in amounts if fields.calls_for_removal(name, live)]
    if stubborn:
        status: dict[str, dict[str, None]] = {}
        for name in stubborn:
            status.setdefault(name.partition(":")[0], {})[_key(name)] = None
        body = {"metadata": {"resourceVersion": live.resource_version}, "status": status}
        steps.append(_removal(path, body, stubborn))
    return steps


def unreachable_step(live: LiveNode, condition: WantedCondition, now: Instant) -> Step:
    """The apply that says the agent is silent and leaves everything else that we applied as it is."""
    body = kept_status(live, without=frozenset({condition.type}))
    body["status"].setdefault("conditions", []).append(body_of(condition, live, now))
    reason = f"the agent does not answer ({condition.reason}); values and labels stay"
    return Step(
        "apply",
        node_path(live.name, "status"),
        body,
        reason,
        field_manager=CONTROLLER,
        writes=frozenset({f"condition:{condition.type}"}),
    )


def kept_status(live: LiveNode, *, without: frozenset[str]) -> dict[str, Any]:
    """An apply body that keeps all that our applies own in the status, but for the condition types in `without`."""
    status: dict[str, Any] = {
        kind: owned for kind in ("capacity", "allocatable", "nodeInfo") if (owned := _owned(live, kind))
    }
    addresses = [{"type": kind, "address": value} for kind, value in _owned(live, "address").items()]
    if addresses:
        status["addresses"] = addresses
    conditions = [dict(body) for kind, body in _owned_conditions(live).items() if kind not in without]
    if conditions:
        status["conditions"] = conditions
    return _object(live, {}, copied=True) | {"status": status}


def _status_body(live: LiveNode, fields: Fields, conditions: ConditionWork, now: Instant) -> dict[str, Any]:
    capacity, copied_capacity = _collect(fields, fields.of("capacity"))
    allocatable, copied_allocatable = _collect(fields, fields.of("allocatable"))
    facts, copied_facts = _collect(fields, fields.of("nodeInfo"))
    addresses, copied_addresses = _collect(fields, fields.of("address"))
    other_facts = {
        key: value for key, value in _owned(live, "nodeInfo").items() if f"nodeInfo:{key}" not in fields.wanted
    }
    other_addresses = {
        key: value for key, value in _owned(live, "address").items() if f"address:{key}" not in fields.wanted
    }
    stated = {
        condition.type: body_of(condition, live, now)
        for condition in conditions.wanted
        if condition.type in conditions.due or _is_in_place(live, condition)
    }
    other_conditions = {
        kind: body
        for kind, body in _owned_conditions(live).items()
        if kind not in stated and kind not in conditions.superfluous
    }
    copied = any(
        (
            copied_capacity,
            copied_allocatable,
            copied_facts,
            copied_addresses,
            other_facts,
            other_addresses,
            other_conditions,
        )
    )
    status = {
        "capacity": capacity,
        "allocatable": allocatable,
        "nodeInfo": other_facts | facts,
        "addresses": [
            {"type": kind, "address": value} for kind, value in sorted((other_addresses | addresses).items())
        ],
        "conditions": [body for _, body in sorted((other_conditions | stated).items())],
    }
    return _object(live, {}, copied=copied) | {"status": {key: value for key, value in status.items() if value}}


def _is_in_place(live: LiveNode, condition: WantedCondition) -> bool:
    seen = live.condition(condition.type)
    return seen is not None and says(seen, condition)


def _collect(fields: Fields, names: Iterable[str]) -> tuple[dict[str, str], bool]:
    """Keys and values an apply must carry for these fields, and whether one is a copy of the live value."""
    values: dict[str, str] = {}
    copied = False
    for name in names:
        value, is_copy = fields.applied(name)
        if value is not None:
            values[_key(name)] = value
            copied = copied or is_copy
    return values, copied


def _owned(live: LiveNode, kind: str) -> dict[str, str]:
    owned = live.owned()
    prefix = f"{kind}:"
    return {_key(name): value for name, value in live.fields() if name.startswith(prefix) and name in owned}


def _owned_conditions(live: LiveNode) -> dict[str, Mapping[str, str]]:
    owned = live.owned()
    return {item.type: copy_of(item) for item in live.conditions if f"condition:{item.type}" in owned}


def _object(live: LiveNode, metadata: Mapping[str, Any], *, copied: bool) -> dict[str, Any]:
    identity = {"name": live.name}
    if live.uid:
        # Without it an apply to a Node that was deleted meanwhile would create one, without taint and annotation.
        identity["uid"] = live.uid
    if copied and live.resource_version:
        identity["resourceVersion"] = live.resource_version
    return {"apiVersion": "v1", "kind": "Node", "metadata": {**identity, **metadata}}


def _removal(path: str, body: Mapping[str, Any], names: list[str]) -> Step:
    reason = f"remove {', '.join(names)}: another writer owns it too, so leaving it out does not take it off"
    return Step(
        "merge-patch", path, body, reason, field_manager=CONTROLLER, writes=frozenset(names), removes=frozenset(names)
    )


def _reason(due: list[str], fields: Fields) -> str:
    changes = [_change(name, fields) for name in due]
    return "; ".join(changes[:8]) + (f"; and {len(changes) - 8} more" if len(changes) > 8 else "")


def _change(name: str, fields: Fields) -> str:
    if name not in fields.wanted:
        return name
    live, wanted = fields.values.get(name), fields.wanted[name]
    if wanted is None:
        return f"{name}: {live} → absent"
    return f"{name}: {'absent' if live is None else live} → {wanted}"


def _key(name: str) -> str:
    return name.partition(":")[2]
