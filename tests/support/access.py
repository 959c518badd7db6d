"""What the shipped RBAC grants, and what the controller was seen to ask the API server for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from devenv.audit_log import audit_events
from devenv.control_plane import RBAC_FILES
from devenv.credentials import CONTROLLER_USER
from devenv.kube_api import Json

_ROLES = {"Role", "ClusterRole"}

# Everything the controller does, watches and lists included, without bodies.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "Metadata", "users": [CONTROLLER_USER], "omitStages": ["RequestReceived"]},
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, `nodes/status` for a subresource; `namespace` is `*` for all and for none."""

    namespace: str
    group: str
    resource: str
    verb: str

    def covers(self, other: Right) -> bool:
        """Whether this allows what `other` asks."""
        return self.namespace in ("*", other.namespace) and (self.group, self.resource, self.verb) == (
            other.group,
            other.resource,
            other.verb,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of one role: the role it is in, its place there, and what it grants."""

    role: str
    index: int
    rights: tuple[Right, ...]


def roles() -> list[Json]:
    """Return the roles as shipped."""
    documents = [each for file in RBAC_FILES for each in yaml.safe_load_all(file.read_text())]
    return [each for each in documents if each["kind"] in _ROLES]


def rules() -> list[Rule]:
    """Return every rule of the shipped roles."""
    return [
        Rule(f"{role['metadata'].get('namespace', '*')}/{role['metadata']['name']}", index, tuple(_rights(role, rule)))
        for role in roles()
        for index, rule in enumerate(role["rules"])
    ]


def without(rule: Rule) -> Json:
    """Return the role of a rule as it is without that rule."""
    for role in roles():
        if f"{role['metadata'].get('namespace', '*')}/{role['metadata']['name']}" == rule.role:
            return role | {"rules": [each for i, each in enumerate(role["rules"]) if i != rule.index]}
    raise LookupError(rule.role)


def asked(audit_log: Path, *, status: int | None = None, since: int = 0) -> set[Right]:
    """Return what the controller asked for by now, after the mark `since` in the log.

    With `status`, only what was answered so.
    """
    return {
        right
        for event in audit_events(audit_log, since)
        if event["user"]["username"] == CONTROLLER_USER and "objectRef" in event
        if status in (None, event.get("responseStatus", {}).get("code"))
        for right in [_asked(event)]
    }


def _asked(event: dict[str, Any]) -> Right:
    reference = event["objectRef"]
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource", ""))))
    return Right(reference.get("namespace", ""), reference.get("apiGroup", ""), resource, event["verb"])


def _rights(role: Json, rule: Json) -> Iterator[Right]:
    namespace = role["metadata"].get("namespace", "*")
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield Right(namespace, group, resource, verb)
