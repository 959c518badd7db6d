"""The controller's connections and nothing else: `python -m benchmarks.tls_streams AGENTS_FILE [TLS_DIRECTORY]`.

Why this exists: what mutual TLS adds to a fleet is added to its connections; with Nodes and Leases around them the same
figure would look smaller. Prints `{"seconds", "cpu_seconds"}` when every agent has reported, counted from before the
first is dialled, and holds the streams until standard input ends or SIGTERM.
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from benchmarks.child_commands import obey_until_ended
from common.tasks import end_tasks
from common.tls_files import TlsFiles
from controller.agents.credentials import ClientCredentials
from controller.agents.discovery import StaticList
from controller.agents.endpoints import AgentEndpoint
from controller.agents.fleet import AgentFleet
from controller.nodes.report import NodeReport


class _Reporters:
    """An observer that waits until this many nodes have reported."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._reports: dict[str, NodeReport] = {}
        self.all_reported = asyncio.Event()

    def expect_agent(self, agent: str, node_name: str) -> None:
        """Nothing to note."""

    def observe_report(self, agent: str, report: NodeReport) -> None:
        """Keep it, as a controller does."""
        self._reports[agent] = report
        if len(self._reports) == self._count:
            self.all_reported.set()

    def observe_contact(self, agent: str, node_name: str) -> None:
        """Nothing to note."""

    def observe_loss(self, agent: str, node_name: str, reason: str) -> None:
        """Nothing to note; the agent is dialled again."""

    def observe_refusal(self, agent: str, node_name: str, reason: str, message: str) -> None:
        """End: a fleet that is refused measures nothing."""
        raise SystemExit(f"{node_name} at {agent}: {reason}: {message}")

    def forget_agent(self, agent: str, node_name: str) -> None:
        """Nothing to note."""


async def _hold(endpoints: list[AgentEndpoint], tls_directory: Path | None) -> None:
    credentials = None
    if tls_directory is not None:
        credentials = ClientCredentials(
            TlsFiles(*(str(tls_directory / name) for name in ("ca.crt", "tls.crt", "tls.key")))
        )
    reporters = _Reporters(len(endpoints))
    fleet = AgentFleet([StaticList(endpoints)], reporters, credentials)
    began, cpu = time.monotonic(), time.process_time()
    running = asyncio.create_task(fleet.run())
    try:
        reported = asyncio.create_task(reporters.all_reported.wait())
        await asyncio.wait({running, reported}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        took = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
        gc.collect()
        gc.freeze()
        print(json.dumps(took), flush=True)
        await obey_until_ended(lambda _: None)
    finally:
        await end_tasks([running])


def main() -> None:
    """Dial every agent of the file that is the first argument."""
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    endpoints = [AgentEndpoint(*line.partition("=")[::2]) for line in lines]
    asyncio.run(_hold(endpoints, Path(sys.argv[2]) if len(sys.argv) > 2 else None))


if __name__ == "__main__":
    main()
