"""The images' health check: alive, not alive, turned off, and an address that is none."""

from __future__ import annotations

import asyncio
import socket

import pytest

from common.healthcheck import main, problem_with
from common.http_listener import HttpListener, Page, health_routes


async def _metrics() -> Page:
    return Page(200, b"")


async def test_a_program_that_answers_is_alive_even_when_it_is_not_ready() -> None:
    listener = HttpListener(health_routes(lambda: ["nobody leads"], _metrics))
    address = await listener.start("127.0.0.1", 0)
    port = address.rpartition(":")[2]
    try:
        for listens in (address, f"0.0.0.0:{port}"):
            assert await asyncio.to_thread(problem_with, listens) == ""
    finally:
        await listener.close()


async def test_another_answer_than_ok_is_a_problem() -> None:
    listener = HttpListener({})
    address = await listener.start("127.0.0.1", 0)
    try:
        assert await asyncio.to_thread(problem_with, address) == f"{address}: /healthz answered 404"
    finally:
        await listener.close()


def test_nobody_listening_is_a_problem() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert "Connection refused" in problem_with(f"127.0.0.1:{port}")


@pytest.mark.parametrize(("listens", "status"), [("off", 0), ("not an address", 1), ("", 0)])
def test_the_address_is_the_programs_own_setting(
    listens: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty variable is an unset one."""
    monkeypatch.setenv("COCOON_NODE_HTTP_LISTEN", listens)
    assert main("COCOON_NODE_HTTP_LISTEN", "off") == status
    assert bool(capsys.readouterr().err) == bool(status)
