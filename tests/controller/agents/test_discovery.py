"""Lists, files and DNS: the whole set at each change, the last good set through every failure."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.agents.discovery import AgentSource, EndpointsFile, StaticList
from controller.agents.dns_names import DnsNames, make_resolver
from controller.agents.endpoints import AgentEndpoint
from tests.support.dns_server import DnsServer
from tests.support.waiting import wait_for_async

Published = list[tuple[AgentEndpoint, ...]]


@contextlib.asynccontextmanager
async def following(source: AgentSource) -> AsyncIterator[Published]:
    published: Published = []
    task = asyncio.create_task(source.run(published.append))
    try:
        yield published
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _pairs(endpoints: tuple[AgentEndpoint, ...]) -> list[tuple[str, str]]:
    return [(endpoint.node_name, endpoint.address) for endpoint in endpoints]


async def test_static_list() -> None:
    source = StaticList([AgentEndpoint("a", "10.0.0.1:1")])
    async with following(source) as published:
        await wait_for_async(lambda: source.answered, what="the list")
        assert _pairs(published[0]) == [("a", "10.0.0.1:1")]


async def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A file that breaks or goes away keeps the last good list and says so."""
    path = tmp_path / "agents"
    path.write_text("a=10.0.0.1:1\n")
    source = EndpointsFile(str(path), poll_seconds=0.02)
    async with following(source) as published:
        await wait_for_async(lambda: len(published) == 1, what="the first list")
        path.write_text("a=10.0.0.1:1\nb=10.0.0.2:1\n")
        await wait_for_async(lambda: len(published) == 2, what="the longer list")
        assert _pairs(published[1]) == [("a", "10.0.0.1:1"), ("b", "10.0.0.2:1")]

        path.write_text("a=10.0.0.1:1\nb=\n")
        await wait_for_async(lambda: "'b='" in source.problem, what="the problem of the broken file")
        assert "last good list is kept" in source.problem
        path.unlink()
        await wait_for_async(lambda: "No such file" in source.problem, what="the problem of the missing file")
        assert len(published) == 2
        assert source.answered

        path.write_text("c=10.0.0.3:1\n")
        await wait_for_async(lambda: len(published) == 3, what="the list of the mended file")
        assert source.problem == ""


async def test_file_behind_a_swapped_link(tmp_path: Path) -> None:
    """Mounted configuration changes by swapping a symbolic link."""
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "agents").write_text(f"a=10.0.0.{number}:1\n")
    (tmp_path / "current").symlink_to("v1")
    source = EndpointsFile(str(tmp_path / "current" / "agents"), poll_seconds=0.02)
    async with following(source) as published:
        await wait_for_async(lambda: len(published) == 1, what="the first list")
        (tmp_path / "next").symlink_to("v2")
        os.replace(tmp_path / "next", tmp_path / "current")
        await wait_for_async(lambda: len(published) == 2, what="the list behind the new link")
        assert _pairs(published[1]) == [("a", "10.0.0.2:1")]


async def test_missing_file_has_not_answered(tmp_path: Path) -> None:
    source = EndpointsFile(str(tmp_path / "nowhere"), poll_seconds=0.02)
    async with following(source) as published:
        await wait_for_async(lambda: source.problem, what="the problem")
        assert not source.answered
        assert published == []


@contextlib.asynccontextmanager
async def _dns(name: str) -> AsyncIterator[tuple[DnsServer, DnsNames, Published]]:
    async with DnsServer() as server:
        resolver = make_resolver(server.address)
        source = DnsNames(name, resolver, refresh_seconds=0.05)
        try:
            async with following(source) as published:
                yield server, source, published
        finally:
            await resolver.close()


@pytest.mark.parametrize("additional", [False, True])
async def test_srv_names_come_from_the_targets(additional: bool) -> None:
    async with _dns("_grpc._tcp.agents.test") as (server, source, published):
        server.additional = additional
        server.records = {
            ("node-b.agents.test", "A"): ["10.0.0.2"],
            ("node-a.agents.test", "A"): ["10.0.0.1"],
            ("_grpc._tcp.agents.test", "SRV"): [(7443, "node-b.agents.test"), (7444, "node-a.agents.test")],
        }
        await wait_for_async(lambda: published, what="the first set")
        assert _pairs(published[-1]) == [("node-a", "10.0.0.1:7444"), ("node-b", "10.0.0.2:7443")]
        assert source.problem == ""
        assert (("node-a.agents.test", "A") in server.questions) is not additional

        server.records[("_grpc._tcp.agents.test", "SRV")] = [(7443, "node-b.agents.test")]
        await wait_for_async(lambda: len(published[-1]) == 1, what="the smaller set")


async def test_srv_target_without_an_address_or_a_node_name() -> None:
    async with _dns("_grpc._tcp.agents.test") as (server, _, published):
        server.records = {
            ("v6.agents.test", "AAAA"): ["fd00::1"],
            ("_grpc._tcp.agents.test", "SRV"): [
                (1, "gone.agents.test"),
                (2, "v6.agents.test"),
                (3, "under_score.agents.test"),
            ],
        }
        await wait_for_async(lambda: published, what="the set")
        assert _pairs(published[-1]) == [("gone", "gone.agents.test:1"), ("v6", "[fd00::1]:2")]


async def test_addresses_have_no_node_name() -> None:
    async with _dns("agents.test:9000") as (server, source, published):
        await wait_for_async(lambda: source.problem, what="the problem of an unknown name")
        assert not source.answered
        server.records = {("agents.test", "A"): ["127.0.0.2", "127.0.0.1"]}
        await wait_for_async(lambda: published, what="the first set")
        assert _pairs(published[-1]) == [("", "127.0.0.1:9000"), ("", "127.0.0.2:9000")]


@pytest.mark.parametrize("trouble", ["failing", "empty"])
async def test_failure_or_empty_answer_keeps_the_last_good_set(trouble: str) -> None:
    """F17's kind: an answer that comes back empty once is not the end of all agents."""
    async with _dns("agents.test:9000") as (server, source, published):
        server.records = {("agents.test", "A"): ["127.0.0.1"]}
        await wait_for_async(lambda: published, what="the first set")
        if trouble == "failing":
            server.failing = True
        else:
            server.records = {}
        await wait_for_async(lambda: source.problem, what="the problem")
        assert len(published) == 1
        server.failing = False
        server.records = {("agents.test", "A"): ["127.0.0.1", "127.0.0.3"]}
        await wait_for_async(lambda: len(published) == 2, what="the set after the trouble")
        assert source.problem == ""
