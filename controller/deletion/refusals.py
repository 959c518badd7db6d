"""What follows when an agent does not do what it was asked: for the queue, for people, and for the election.

Why this exists: every queue of this room meets the same refusals, and each must end in the name being put off, never in
another name waiting.
"""

import logging
from collections.abc import Awaitable, Callable

from common.logging import fields
from controller.agents.cache_client import (
    AgentCallError,
    AgentUnreachableError,
    StaleEpochError,
    StaleSyncError,
    WrongClusterError,
)
from controller.deletion.actions import Actions
from controller.deletion.metrics import CALL_FAILURES
from controller.kube.errors import KubeError, RetryLater
from controller.kube.leadership import EpochError, NotLeadingError

log = logging.getLogger(__name__)

_OTHER_CLUSTER_SECONDS = 60.0
# An agent of a release without snapshot cache: there is nothing to decide, and nothing to tell anybody.
NO_CACHE = "UNIMPLEMENTED"
_NO_CACHE_SECONDS = 300.0
# About one pod's decision, and told there already.
_TOLD_ELSEWHERE = "RetainSnapshots"

Work = Callable[[str], Awaitable[None]]


def concerns_whole_agent(error: KubeError | AgentCallError) -> bool:
    """Whether every other call to this agent would be refused too."""
    return isinstance(error, AgentUnreachableError | StaleEpochError | WrongClusterError)


def _epoch_to_exceed(call: str, error: AgentCallError) -> int:
    """Return the epoch above which the leader has to prove itself, -1 when that would change nothing.

    Our syncs go to one agent one by one, so a later one of our epoch was another leader's: the Lease began again.
    """
    if isinstance(error, StaleEpochError):
        return error.highest_epoch
    return error.epoch if isinstance(error, StaleSyncError) and call == "SyncOwners" else -1


class Refusals:
    """Wraps the work of queues. `recover` is the elector's."""

    def __init__(self, recover: Callable[[int], Awaitable[None]], actions: Actions) -> None:
        """Nothing has been refused yet."""
        self._recover = recover
        self._actions = actions

    def guarded(self, call: str, work: Work) -> Work:
        """Return work that puts its name off by raising RetryLater when an agent refuses; `call` names it."""

        async def run(name: str) -> None:
            try:
                await work(name)
            except NotLeadingError:
                # The next leader decides it from state.
                log.info("left to the next leader", extra=fields(call=call, name=name))
            except AgentCallError as error:
                CALL_FAILURES.labels(call, error.label).inc()
                await self._take(call, error)
                pause = _OTHER_CLUSTER_SECONDS if isinstance(error, WrongClusterError) else 0.0
                pause = _NO_CACHE_SECONDS if error.reason == NO_CACHE else pause
                raise RetryLater(f"{call}: {error}", reason=error.reason, retry_after_seconds=pause) from error

        return run

    async def _take(self, call: str, error: AgentCallError) -> None:
        known = _epoch_to_exceed(call, error)
        if known >= 0:
            try:
                await self._recover(known)
            except (NotLeadingError, EpochError) as refused:
                self._actions.say_node(error.node, "Warning", "StaleControllerEpoch", f"{error}; {refused}")
        elif isinstance(error, WrongClusterError):
            self._actions.say_node(error.node, "Warning", "WrongCluster", str(error))
        elif isinstance(error, AgentUnreachableError):
            self._actions.say_node(error.node, "Warning", "AgentUnreachable", str(error))
        elif call != _TOLD_ELSEWHERE and error.reason != NO_CACHE:
            self._actions.say_node(error.node, "Warning", f"{call}Failed", f"{error.reason}: {error}")
