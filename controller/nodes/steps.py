"""One request that a plan wants sent, as a value: shown by a dry run, sent by the writer, compared by tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.nodes.model import LEASE_NAMESPACE

NODES_PATH = "/api/v1/nodes"
LEASES_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"

Verb = Literal["create", "apply", "merge-patch", "json-patch", "delete"]


@dataclass(frozen=True, slots=True)
class Step:
    """A request: `path` below the API server, `body` a plain JSON object (a list for a JSON patch).

    Fields are named as in `model`. `writes` names what the step sets or takes off. `removes` names what a removal takes
    off: it is left out when none of that is on the object any more. `requires` names what must be on the object before
    the step may be sent.
    """

    verb: Verb
    path: str
    body: Any
    reason: str
    field_manager: str = ""
    writes: frozenset[str] = field(default_factory=frozenset)
    removes: frozenset[str] = field(default_factory=frozenset)
    requires: frozenset[str] = field(default_factory=frozenset)

    def as_object(self) -> Mapping[str, Any]:
        """The step as a plain object for people and machines."""
        shown: dict[str, Any] = {"reason": self.reason, "verb": self.verb, "path": self.path}
        if self.field_manager:
            shown["fieldManager"] = self.field_manager
        if self.body is not None:
            shown["body"] = self.body
        return shown


def node_path(name: str, subresource: str = "") -> str:
    """Path of a Node, or of its subresource."""
    return f"{NODES_PATH}/{name}" + (f"/{subresource}" if subresource else "")


def lease_path(name: str) -> str:
    """Path of a Node's Lease."""
    return f"{LEASES_PATH}/{name}"
