"""Many small API requests at once, by a bare asyncio client: the peer of what the controller writes."""

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.fleet_cluster import administrator
from benchmarks.processes import BenchmarkError
from devenv.control_plane import ControlPlane

_MERGE = "application/merge-patch+json"
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Call:
    """One request; a body goes as JSON, of a PATCH as a merge patch."""

    method: str
    path: str
    body: Any = None


def send(plane: ControlPlane, chains: Sequence[Sequence[Call]]) -> float:
    """Send chains of requests, each chain in its order, many chains at once; return the seconds it took."""
    return asyncio.run(_send(plane, chains))


def send_each(plane: ControlPlane, chains: Sequence[Sequence[Call]], per_second: float) -> list[float]:
    """Begin one chain after the other at this rate; return when each was begun, in Unix seconds."""
    return asyncio.run(_send_each(plane, chains, per_second))


def ask(plane: ControlPlane, calls: Sequence[Call]) -> list[Any]:
    """Send requests, many at once; return the answers in order."""
    return asyncio.run(_ask(plane, calls))


async def _send(plane: ControlPlane, chains: Sequence[Sequence[Call]]) -> float:
    async with _session(plane) as session:
        slots = asyncio.Semaphore(_AT_ONCE)
        started = time.monotonic()
        await asyncio.gather(*(_chain(session, slots, chain) for chain in chains))
        return time.monotonic() - started


async def _send_each(plane: ControlPlane, chains: Sequence[Sequence[Call]], per_second: float) -> list[float]:
    begun = []
    async with _session(plane) as session, asyncio.TaskGroup() as group:
        slots = asyncio.Semaphore(_AT_ONCE)
        started = time.monotonic()
        for number, chain in enumerate(chains):
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            begun.append(time.time())
            group.create_task(_chain(session, slots, chain))
    return begun


async def _ask(plane: ControlPlane, calls: Sequence[Call]) -> list[Any]:
    async with _session(plane) as session:
        slots = asyncio.Semaphore(_AT_ONCE)
        return await asyncio.gather(*(_one(session, slots, call) for call in calls))


async def _chain(session: aiohttp.ClientSession, slots: asyncio.Semaphore, chain: Sequence[Call]) -> None:
    for call in chain:
        await _one(session, slots, call)


async def _one(session: aiohttp.ClientSession, slots: asyncio.Semaphore, call: Call) -> Any:  # noqa: ANN401 -- the API's JSON
    kind = _MERGE if call.method == "PATCH" else "application/json"
    data = None if call.body is None else json.dumps(call.body).encode()
    async with slots, session.request(call.method, call.path, data=data, headers={"Content-Type": kind}) as answer:
        content = await answer.json()
        if answer.status >= 300:
            raise BenchmarkError(f"{call.method} {call.path}: {answer.status} {content.get('message', '')}")
        return content


def _session(plane: ControlPlane) -> aiohttp.ClientSession:
    authorities, token = administrator(plane)
    return aiohttp.ClientSession(
        plane.url,
        headers={"Authorization": f"Bearer {token}"},
        connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(authorities)), limit=_AT_ONCE),
        timeout=aiohttp.ClientTimeout(total=60),
    )
