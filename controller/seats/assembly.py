"""The parts of seat release put together, and the watch over whether somebody else releases seats too."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from common.logging import fields
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError
from controller.kube.events import EventRecorder
from controller.kube.leadership import Leadership
from controller.kube.reflector import ReflectorLimits
from controller.seats.actions import RegistryCalls, SeatActions
from controller.seats.copies import CopyCalls, LocalCopies
from controller.seats.operator_guard import running_operator
from controller.seats.reconciler import CrashPoint, SeatPace, SeatReconciler, no_crash
from controller.seats.watch import SeatWatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SeatSettings:
    """What an operator or a test may choose.

    `forced`: to act beside a cocoon-operator too. `guard_seconds`: how often is looked for one.
    """

    forced: bool = False
    guard_seconds: float = 30.0
    pace: SeatPace = field(default_factory=SeatPace)
    limits: ReflectorLimits = field(default_factory=ReflectorLimits)


class SeatParts:
    """Everything seat release needs. `run` until cancelled."""

    def __init__(
        self,
        client: KubeClient,
        leadership: Leadership,
        registry: RegistryCalls | None,
        calls: CopyCalls,
        nodes: Callable[[], Iterable[str]],
        all_tried: Callable[[], bool],
        *,
        events: EventRecorder | None = None,
        settings: SeatSettings | None = None,
        sets_served: Callable[[], bool] = lambda: True,
        crash_point: CrashPoint = no_crash,
    ) -> None:
        """Nothing is asked or sent before `run`. `nodes` and `all_tried` are those of `LocalCopies`.

        `sets_served` says whether the API serves CocoonSets at all.
        """
        self._settings = settings or SeatSettings()
        self._client = client
        self._operator = ""
        self.watch = SeatWatch(client, self._changed, limits=self._settings.limits, sets_served=sets_served)
        actions = SeatActions(client, self.watch, leadership, registry, LocalCopies(calls, nodes, all_tried), events)
        self.reconciler = SeatReconciler(
            self.watch,
            actions,
            leadership,
            pace=self._settings.pace,
            may_act=lambda: not self._operator,
            crash_point=crash_point,
        )

    def unready_reasons(self) -> list[str]:
        """One sentence for each thing that is missing before seats can be released."""
        reasons = self.watch.unready_reasons()
        if self._operator:
            reasons.append(f"a cocoon-operator runs ({self._operator}); seats are left to it")
        return reasons

    async def run(self) -> None:
        """Watch and act until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch.run())
            group.create_task(self.reconciler.run())
            if not self._settings.forced:
                group.create_task(self.guard())

    def _changed(self, key: str) -> None:
        self.reconciler.changed(key)

    async def guard(self) -> None:
        """Hold everything while a cocoon-operator runs that was started after us; until cancelled."""
        while True:
            await asyncio.sleep(self._settings.guard_seconds)
            try:
                found = await running_operator(self._client)
            except KubeError as error:
                log.warning("whether a cocoon-operator runs cannot be read", extra=fields(error=str(error)))
                continue
            if found and not self._operator:
                log.error("a cocoon-operator runs; seats are left to it", extra=fields(lease=found))
            if self._operator and not found:
                log.info("no cocoon-operator runs any more; seats are released again")
            self._operator = found
