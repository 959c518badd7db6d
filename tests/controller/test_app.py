"""The parts put together: what is missing is said, and what breaks ends the program instead of limping on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from common.program import StartError
from controller.app import Controller, agent_sources, open_client
from controller.config import load_settings
from devenv.control_plane import ControlPlane
from tests.support.waiting import wait_for_async


@contextlib.asynccontextmanager
async def _controller(kubeconfig: str, *pairs: tuple[str, str]) -> AsyncIterator[Controller]:
    options = {"kubeconfig": kubeconfig, "http_listen": "127.0.0.1:0"} | dict(pairs)
    settings = load_settings(options, {})
    async with open_client(settings) as client, agent_sources(settings, client) as sources:
        yield Controller(settings, client, sources)


async def test_readiness_says_what_is_missing(control_plane: ControlPlane, tmp_path: Path) -> None:
    listed = tmp_path / "agents"
    async with _controller(str(control_plane.kubeconfig("controller")), ("agents_file", str(listed))) as controller:
        address = await controller.listen()
        parts = (controller.watch(), controller.deletion.run(), controller.act())
        work = [asyncio.create_task(part) for part in parts]
        try:
            async with httpx.AsyncClient() as browser:

                async def ready() -> httpx.Response:
                    return await browser.get(f"http://{address}/readyz")

                async def only_agents_are_missing() -> bool:
                    answer = await ready()
                    return answer.status_code == 503 and answer.text == (
                        f"agents from file {listed}: {listed}: No such file or directory\n"
                    )

                await wait_for_async(only_agents_are_missing, 60, what="the reason why it is not ready")
                assert (await browser.get(f"http://{address}/healthz")).status_code == 200

                listed.write_text("# none yet\n")

                async def is_ready() -> bool:
                    return (await ready()).status_code == 200

                await wait_for_async(is_ready, 60, what="readiness once the file is there")
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await controller.http.close()


async def test_api_server_that_does_not_answer_is_a_reason(tmp_path: Path) -> None:
    """F13: without an API the controller waits and says so; nothing is dialled on the strength of nothing."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {token: t}}]\n"
        "clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}]\n"
    )
    async with _controller(str(kubeconfig), ("agents", "a=127.0.0.1:1")) as controller:
        parts = (controller.watch(), controller.deletion.run(), controller.act())
        work = [asyncio.create_task(part) for part in parts]
        try:
            await wait_for_async(
                lambda: any("no answer from the API server" in reason for reason in controller.unready_reasons()),
                what="the reason",
            )
            assert not any(task.done() for task in work)
            assert list(controller.fleet.connections) == []
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def test_tls_files_that_do_not_fit_stop_the_start(control_plane: ControlPlane, tmp_path: Path) -> None:
    files = [(f"tls_{name}_file", str(tmp_path / name)) for name in ("ca", "cert", "key")]
    for _, path in files:
        (tmp_path / path).write_text("no certificate")
    with pytest.raises(StartError, match="TLS files") as caught:
        async with _controller(str(control_plane.kubeconfig("controller")), ("agents", "a=10.0.0.1:1"), *files):
            pytest.fail("it must not start")
    assert caught.value.status == 2
