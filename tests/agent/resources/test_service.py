"""What Get and Watch answer: the same bytes, at once, at each change, and a sign of life in between."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from agent.config import Settings
from agent.resources.facts import read_facts
from agent.resources.monitor import host_report
from agent.resources.reader import ResourceReader, StorageInputs
from agent.resources.report import HostReport
from agent.resources.service import NodeResourcesService
from agent.rpc.errors import ApiError
from cocoonstack.node.v1 import node_resources_pb2 as pb
from tests.support.waiting import wait_for_async


@pytest.fixture
def report(host_settings: Callable[..., Settings]) -> HostReport:
    settings = host_settings("default-1gi-pages", VK_SNAPSHOT_CPU_CLASS="gen4", VK_NODE_CPU="3100m")
    reader = ResourceReader(settings)
    reader.read_fixed()
    reader.read_storage(StorageInputs())
    resources = reader.resources()
    assert resources is not None
    facts = read_facts(settings.procfs, settings.sysfs, settings.etcfs)
    return host_report(settings, facts, "192.0.2.1", resources, reader.problems)


async def get(service: NodeResourcesService) -> pb.NodeResourcesReport:
    handler = service.handlers()["GetNodeResources"].unary_unary
    encoded: bytes = await handler(b"", None)  # type: ignore[misc, arg-type]  # a coroutine, which the stubs do not know
    return pb.GetNodeResourcesResponse.FromString(encoded).report


class Watch:
    """One watch, read by hand."""

    def __init__(self, service: NodeResourcesService) -> None:
        behavior = service.handlers()["WatchNodeResources"].unary_stream
        self._messages: AsyncIterator[bytes] = behavior(b"", None)  # type: ignore[assignment, misc, arg-type]  # the same

    async def next(self) -> pb.WatchNodeResourcesResponse:
        return pb.WatchNodeResourcesResponse.FromString(await anext(self._messages))

    async def close(self) -> None:
        await self._messages.aclose()  # type: ignore[attr-defined]  # a generator


@contextlib.asynccontextmanager
async def watching(service: NodeResourcesService) -> AsyncIterator[Watch]:
    watch = Watch(service)
    try:
        yield watch
    finally:
        await watch.close()


def storage_changed(report: HostReport) -> HostReport:
    amounts = tuple(
        replace(each, allocatable=each.allocatable - 1) if each.name == "ephemeral-storage" else each
        for each in report.amounts
    )
    return replace(report, amounts=amounts)


async def test_before_the_first_report_there_is_an_error() -> None:
    service = NodeResourcesService()
    for ask in (lambda: get(service), lambda: Watch(service).next()):
        with pytest.raises(ApiError) as caught:
            await ask()
        assert caught.value.reason == "PROBE_FAILED"


async def test_the_message_says_what_the_report_says(report: HostReport) -> None:
    service = NodeResourcesService()
    service.publish(report)
    message = await get(service)
    assert message.node_name == "host-1"
    assert message.instance_id == service.instance_id
    assert message.revision == 1
    assert (message.capacity["cpu"], message.allocatable["cpu"]) == ("3100m", "2")
    assert message.labels["cocoonstack.io/snapshot-cpu-class"] == "gen4"
    assert set(message.labels) <= set(message.managed_label_keys)
    assert [(address.type, address.address) for address in message.addresses] == [
        ("InternalIP", "192.0.2.1"),
        ("Hostname", "host-1"),
    ]
    by_name = {entry.name: entry for entry in message.resources}
    assert list(by_name) == sorted(by_name) == sorted(message.capacity) == sorted(message.allocatable)
    assert by_name["cpu"].source == pb.RESOURCE_SOURCE_OVERRIDDEN
    assert by_name["cpu"].origin == "VK_NODE_CPU"
    assert by_name["memory"].source == pb.RESOURCE_SOURCE_PROBED
    assert by_name["memory"].origin.endswith("/proc/meminfo")
    for entry in message.resources:
        assert entry.raw_value + sum(step.value for step in entry.adjustments) == entry.allocatable_value
        assert entry.observe_time.seconds > 0
    assert [condition.type for condition in message.conditions] == ["CocoonMemoryOvercommitted", "CocoonProbeFailed"]


async def test_a_cleared_class_is_managed_and_absent(host_settings: Callable[..., Settings]) -> None:
    """F9: the key stays among the managed ones, so that the controller takes it off the Node."""
    settings = host_settings()
    reader = ResourceReader(settings)
    reader.read_fixed()
    reader.read_storage(StorageInputs())
    resources = reader.resources()
    assert resources is not None
    facts = read_facts(settings.procfs, settings.sysfs, settings.etcfs)
    service = NodeResourcesService()
    service.publish(host_report(settings, facts, "192.0.2.1", resources, ()))
    message = await get(service)
    assert "cocoonstack.io/snapshot-cpu-class" not in message.labels
    assert "cocoonstack.io/snapshot-cpu-class" in message.managed_label_keys


async def test_a_watch_starts_with_what_get_says(report: HostReport) -> None:
    service = NodeResourcesService()
    service.publish(report)
    async with watching(service) as watch:
        first = await watch.next()
        assert first.report == await get(service)
        assert first.heartbeat_interval.seconds == 10
        assert first.heartbeat_time.seconds > 0


async def test_a_change_is_sent_and_the_same_again_is_not(report: HostReport) -> None:
    """F10: a reading that says the same is no revision and no message."""
    service = NodeResourcesService(heartbeat_seconds=3600)
    service.publish(report)
    async with watching(service) as watch:
        await watch.next()
        waiting = asyncio.create_task(watch.next())
        service.publish(replace(report, observed_at=report.observed_at + 60))
        assert (await get(service)).observe_time.seconds == int(report.observed_at + 60)
        assert not waiting.done()
        service.publish(storage_changed(report))
        message = await waiting
        assert message.report.revision == 2
        assert message.report == await get(service)


async def test_a_slow_watch_gets_the_newest_only(report: HostReport) -> None:
    service = NodeResourcesService()
    service.publish(report)
    async with watching(service) as watch:
        await watch.next()
        changed = report
        for _ in range(1000):
            changed = storage_changed(changed)
            service.publish(changed)
        assert (await watch.next()).report.revision == 1001


async def test_heartbeats_have_no_report(report: HostReport) -> None:
    service = NodeResourcesService(heartbeat_seconds=0.01)
    service.publish(report)
    beating = asyncio.create_task(service.beat())
    try:
        async with watching(service) as watch:
            assert (await watch.next()).HasField("report")
            for _ in range(3):
                message = await watch.next()
                assert not message.HasField("report")
                assert message.heartbeat_interval.nanos == 10_000_000
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


async def test_one_watch_that_goes_leaves_the_others(report: HostReport) -> None:
    service = NodeResourcesService(heartbeat_seconds=3600)
    service.publish(report)
    async with watching(service) as staying, watching(service) as going:
        await staying.next()
        await going.next()
        assert service.watches == 2
        waiting, leaving = asyncio.create_task(staying.next()), asyncio.create_task(going.next())
        await asyncio.sleep(0)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        await wait_for_async(lambda: service.watches == 1)
        service.publish(storage_changed(report))
        assert (await waiting).report.revision == 2


async def test_closing_ends_every_watch(report: HostReport) -> None:
    service = NodeResourcesService(heartbeat_seconds=3600)
    service.publish(report)
    async with watching(service) as watch:
        await watch.next()
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        service.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
    assert service.watches == 0


async def test_every_start_has_an_instance_of_its_own() -> None:
    assert NodeResourcesService().instance_id != NodeResourcesService().instance_id
