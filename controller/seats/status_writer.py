"""Writes a set's status, by the status subresource: phase, agents, and our conditions among those of others."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from controller.cocoon_keys import set_path
from controller.kube.client import KubeClient
from controller.kube.errors import Conflict, NotFound
from controller.kube.events import EventType
from controller.seats.metrics import SUSPENDING
from controller.seats.model import RELEASED_CONDITION, CocoonSet, Phase
from controller.seats.steps import Status, Step
from controller.seats.watch import SeatWatch
from controller.seats.wire import SetItem

_EVENTS: Final = {
    Phase.SUSPENDING: "Suspending",
    Phase.SUSPENDED: "Suspended",
    Phase.WAKING: "Waking",
    Phase.RUNNING: "Running",
}
FIELD_MANAGER: Final = "cocoon-node-controller-seats"


class StatusWriter:
    """Writes statuses; `now` gives the wall-clock time."""

    def __init__(
        self,
        client: KubeClient,
        watch: SeatWatch,
        say: Callable[[CocoonSet, EventType, str, str], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`say` sends an Event about a set."""
        self._client = client
        self._watch = watch
        self._say = say
        self._now = now
        self._decode = msgspec.json.Decoder(SetItem).decode

    async def write(self, cs: CocoonSet, step: Step) -> None:
        """Write the step's status. Raises KubeError; a set that is gone or another one by now needs none."""
        wanted = step.status
        if wanted is None:
            raise ValueError("a step that writes a status has none")
        item = self._watch.set_item(cs.key)
        before = item.conditions() if item is not None and item.metadata.uid == cs.uid else []
        path = f"{set_path(cs.namespace, cs.name)}/status"
        body = {"metadata": {"uid": cs.uid}, "status": self._status(cs, wanted, before)}
        try:
            answer = await self._client.merge_patch(path, body, field_manager=FIELD_MANAGER)
        except (NotFound, Conflict):
            return  # Deleted, or made anew; what is there now has its own plan.
        self._watch.wrote_set(self._decode(answer))
        self._tell(cs, step, wanted, before)

    def _status(self, cs: CocoonSet, wanted: Status, before: list[dict[str, Any]]) -> dict[str, Any]:
        agents = [
            {
                "slot": 0,
                "role": "main",
                "podName": each.pod_name,
                "vmName": each.vm_name,
                "vmID": each.vm_id,
                "ip": each.ip,
                "phase": each.phase,
            }
            for each in wanted.agents
        ]
        status = {
            "observedGeneration": cs.generation,
            "agents": agents,
            "conditions": self._conditions(cs, wanted, before),
        }
        if wanted.phase not in (Phase.NONE, Phase.OTHER):
            status["phase"] = wanted.phase.value
        return status

    def _conditions(self, cs: CocoonSet, wanted: Status, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        ours = {each.type for each in wanted.conditions}
        kept = {each.get("type"): each for each in before}
        found = [each for each in before if each.get("type") not in ours]
        for each in wanted.conditions:
            old = kept.get(each.type, {})
            since = old.get("lastTransitionTime") if old.get("status") == each.status else None
            found.append(
                {
                    "type": each.type,
                    "status": each.status,
                    "reason": each.reason,
                    "message": each.message,
                    "lastTransitionTime": since or self._now().strftime("%Y-%m-%dT%H:%M:%SZ"),
                    "observedGeneration": cs.generation,
                }
            )
        return found

    def _tell(self, cs: CocoonSet, step: Step, wanted: Status, before: list[dict[str, Any]]) -> None:
        if wanted.phase is cs.phase:
            return
        if wanted.phase in _EVENTS:
            self._say(cs, "Normal", _EVENTS[wanted.phase], step.why)
        if (cs.phase, wanted.phase) == (Phase.SUSPENDING, Phase.SUSPENDED):
            times = [each.get("lastTransitionTime") for each in before if each.get("type") == RELEASED_CONDITION]
            for text in filter(None, times):
                SUSPENDING.observe(max(0.0, (self._now() - datetime.fromisoformat(text)).total_seconds()))
