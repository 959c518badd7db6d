"""Keeps the report up to date: first readings with retries, then storage and, if asked for, the rest at their pace.

Why this exists: this is the only place that decides when the host is read and when a report is published. It reads in a
thread, because a file system that hangs must not stop the answers.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from agent.config import Settings
from agent.resources.capacity import HostResources, resource_amounts
from agent.resources.facts import HostFacts
from agent.resources.host import ProbeError
from agent.resources.reader import ResourceReader, StorageInputs, newest_reading
from agent.resources.report import (
    Condition,
    HostReport,
    memory_condition,
    node_labels,
    probe_condition,
    with_transition_times,
)
from agent.resources.snapshot_view import SnapshotView
from common.logging import fields

_LOG = logging.getLogger(__name__)
_FIRST_RETRY_SECONDS = 0.2
_LONGEST_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 10.0


class ReportSink(Protocol):
    """Takes reports as they are made."""

    def publish(self, report: HostReport) -> None:
        """Take a report; it may say the same as the one before."""
        ...


class ProbesFailedError(Exception):
    """A resource could not be read at all since the start; `str()` names each with file and problem."""

    reason = "PROBE_FAILED"


class HostMonitor:
    """Reads the host and publishes reports; `first_report` once, then `run` until cancelled."""

    def __init__(
        self,
        settings: Settings,
        facts: HostFacts,
        node_ip: str,
        sink: ReportSink,
        snapshots: SnapshotView,
        clock: Callable[[], float] = time.time,
        more_conditions: Callable[[], Iterable[Condition]] = tuple,
    ) -> None:
        """`more_conditions` are asked for at each report, on the event loop, and answer from memory."""
        self._settings = settings
        self._more_conditions = more_conditions
        self._facts = facts
        self._node_ip = node_ip
        self._sink = sink
        self._snapshots = snapshots
        self._clock = clock
        self._reader = ResourceReader(settings, clock)
        self._conditions: tuple[Condition, ...] = ()
        self._refresh = asyncio.Event()
        self._told: frozenset[str] = frozenset()
        self._problems: tuple[ProbeError, ...] = ()
        self._reading: asyncio.Future[None] | None = None
        self.failed_readings = 0
        self.last_read_seconds = 0.0

    def refresh_soon(self) -> None:
        """Ask for a new reading of storage and a new report: an owner sync, a collection or a condition changed."""
        self._refresh.set()

    async def first_report(self) -> None:
        """Read everything and publish; raises `ProbesFailedError` when that fails for the configured time."""
        deadline = time.monotonic() + self._settings.start_retry_seconds
        pause = _FIRST_RETRY_SECONDS
        while not await self._read(fixed=True, storage=True):
            left = deadline - time.monotonic()
            if left <= 0:
                raise ProbesFailedError("; ".join(str(problem) for problem in self._problems))
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 2, _LONGEST_RETRY_SECONDS)

    async def run(self) -> None:
        """Read again at the configured pace, and when asked to, until cancelled."""
        settings = self._settings
        now = time.monotonic()
        storage_at = _next(now, settings.storage_refresh_seconds)
        fixed_at = _next(now, settings.refresh_seconds)
        while True:
            asked = await self._wait_until(min(storage_at, fixed_at))
            now = time.monotonic()
            fixed, storage = now >= fixed_at, now >= storage_at
            await self._read(fixed=fixed, storage=storage or (asked and settings.storage_refresh_seconds > 0))
            if fixed:
                fixed_at = _next(now, settings.refresh_seconds)
            if storage:
                storage_at = _next(now, settings.storage_refresh_seconds)

    async def _wait_until(self, moment: float) -> bool:
        """Wait for the moment (monotonic seconds) or for `refresh_soon`; tells whether it was the latter."""
        try:
            async with asyncio.timeout_at(None if moment == float("inf") else moment):
                await self._refresh.wait()
        except TimeoutError:
            return False
        self._refresh.clear()
        return True

    async def _read(self, *, fixed: bool, storage: bool) -> bool:
        """Read, publish what there is; tells whether there is a report."""
        started = time.monotonic()
        if self._reading is None:
            inputs = self._storage_inputs()
            self._reading = _in_thread(lambda: self._read_blocking(inputs, fixed, storage))
        # A reading that hangs is not started a second time: it is told, and waited for again at the next turn.
        finished, _ = await asyncio.wait({self._reading}, timeout=_PATIENCE_SECONDS)
        unanswered = None if finished else self._reader.unanswered(_PATIENCE_SECONDS)
        if finished:
            reading, self._reading = self._reading, None
            reading.result()
            self.last_read_seconds = time.monotonic() - started
        self._problems = (*self._reader.problems, *([unanswered] if unanswered else []))
        self._log_problems()
        report = self._report()
        if report is None:
            return False
        self._sink.publish(report)
        return True

    def _read_blocking(self, inputs: StorageInputs, fixed: bool, storage: bool) -> None:
        if fixed:
            self._reader.read_fixed()
        if storage:
            self._reader.read_storage(inputs)

    def _storage_inputs(self) -> StorageInputs:
        view = self._snapshots
        return StorageInputs(tuple(view.known_vms()), view.reclaimable_bytes(), view.storage_problem())

    def _log_problems(self) -> None:
        problems = {str(problem) for problem in self._problems}
        self.failed_readings += len(problems)
        for problem in sorted(problems - self._told):
            _LOG.warning("probe failed", extra=fields(reason="PROBE_FAILED", problem=problem))
        if self._told and not problems:
            _LOG.info("probes succeed again")
        self._told = frozenset(problems)

    def _report(self) -> HostReport | None:
        resources = self._reader.resources()
        if resources is None:
            return None
        now = self._clock()
        extra = (*self._snapshots.conditions(), *self._more_conditions())
        report = host_report(self._settings, self._facts, self._node_ip, resources, self._problems, extra)
        self._conditions = with_transition_times(report.conditions, self._conditions, now)
        return replace(report, conditions=self._conditions)


def host_report(
    settings: Settings,
    facts: HostFacts,
    node_ip: str,
    resources: HostResources,
    problems: tuple[ProbeError, ...],
    extra_conditions: tuple[Condition, ...] = (),
) -> HostReport:
    """Return the report that follows from a reading; its conditions have no transition times yet."""
    amounts = resource_amounts(
        resources, settings.reserve_percent, memory_excludes_hugepages=settings.memory_excludes_hugepages
    )
    labels = node_labels(settings.node_name, settings.pool, settings.snapshot_cpu_class, facts.architecture)
    conditions = (
        memory_condition(amounts),
        probe_condition(tuple(str(problem) for problem in problems)),
        *extra_conditions,
    )
    return HostReport(
        node_name=settings.node_name,
        amounts=amounts,
        labels=tuple(sorted(labels.items())),
        reserve_percent=settings.reserve_percent,
        facts=facts,
        node_ip=node_ip,
        provider_id=settings.provider_id or "",
        conditions=conditions,
        observed_at=newest_reading(resources),
    )


def _next(now: float, seconds: int) -> float:
    return now + seconds if seconds else float("inf")


def _in_thread(read: Callable[[], None]) -> asyncio.Future[None]:
    """Run a reading in a thread that does not hold up the end of the process, as one of an executor would."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if finished.done():
            return
        if error is None:
            finished.set_result(None)
        else:
            finished.set_exception(error)

    def run() -> None:
        outcome: Exception | None = None
        try:
            read()
        except Exception as error:
            outcome = error
        # The loop may be gone when a reading that hung comes back after all.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, outcome)

    threading.Thread(target=run, name="probe", daemon=True).start()
    return finished
