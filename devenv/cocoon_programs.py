"""Starts our own two programs for the demonstration and the tests, each in a folder of its own.

They are the installed commands, told everything by command line and environment: what an operator does, done by code.
Settings of the surrounding environment are taken away first, so that a developer's own do not leak in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from devenv.errors import DevenvError
from devenv.ports import PortLease
from devenv.processes import ManagedProcess, wait_until

_COMMANDS = Path(sys.executable).parent
_READY_SECONDS = 60.0
_OUR_PREFIXES = ("VK_", "COCOON_")


def environment_with(settings: Mapping[str, str]) -> dict[str, str]:
    """Return this process' environment without anybody's settings of ours, plus `settings`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_OUR_PREFIXES)}
    return kept | dict(settings)


class AgentProcess:
    """One `cocoon-node-agent serve` with root, store and state below `directory`, on leased ports.

    `settings` are environment variables; changed between `stop` and `start`, the agent comes back with them under the
    same address.
    """

    def __init__(self, directory: Path, node_name: str, settings: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.node_name = node_name
        self.settings = dict(settings or {})
        self.root = directory / "root"
        self.ready_file = directory / "agent.ready"
        self._ports = [PortLease(), PortLease()]
        self.address, self.http_address = (f"127.0.0.1:{lease.port}" for lease in self._ports)
        self.process = ManagedProcess(
            "cocoon-node-agent",
            [_COMMANDS / "cocoon-node-agent", "serve"],
            log_path=directory / "agent.log",
        )
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def endpoint(self) -> str:
        """What the controller is told: `name=host:port`."""
        return f"{self.node_name}={self.address}"

    def environment(self) -> dict[str, str]:
        """Return the environment the agent is started with."""
        own_places = {
            "VK_NODE_NAME": self.node_name,
            "COCOON_ROOT_DIR": str(self.root),
            "COCOON_NODE_RUN_DIR": str(self.directory / "run"),
            "COCOON_NODE_STATE_DIR": str(self.directory / "state"),
            "COCOON_NODE_LISTEN": self.address,
            "COCOON_NODE_HTTP_LISTEN": self.http_address,
            "COCOON_NODE_READY_FILE": str(self.ready_file),
        }
        return environment_with(own_places | self.settings)

    def start(self) -> None:
        """Start it and wait until it serves; DevenvError with its last words when it ends instead."""
        _start_and_wait(self.process, self.environment(), self.ready_file)

    def stop(self) -> int | None:
        """Ask it to end and return its exit status."""
        return self.process.stop()

    def restart(self) -> None:
        """Stop it and start it again with the present settings."""
        self.stop()
        self.start()

    def release(self) -> None:
        """Stop it for good and give its ports back."""
        self.stop()
        for lease in self._ports:
            lease.release()


class ControllerProcess:
    """One `cocoon-node-controller run` against the cluster of a kubeconfig file, with a static list of agents.

    `agents` are `name=host:port`; `settings` are environment variables.
    """

    def __init__(
        self,
        directory: Path,
        kubeconfig: Path,
        agents: Sequence[str],
        settings: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ready_file = directory / "controller.ready"
        self._port = PortLease()
        self.http_address = f"127.0.0.1:{self._port.port}"
        own_places = {
            "COCOON_NODE_CONTROLLER_KUBECONFIG": str(kubeconfig),
            "COCOON_NODE_CONTROLLER_AGENTS": ",".join(agents),
            "COCOON_NODE_CONTROLLER_HTTP_LISTEN": self.http_address,
            "COCOON_NODE_CONTROLLER_READY_FILE": str(self.ready_file),
            # Controllers of different tests and demonstrations are not each other's followers.
            "COCOON_NODE_CONTROLLER_LEASE_NAME": f"cocoon-node-controller-{self._port.port}",
        }
        self.settings = own_places | dict(settings or {})
        self.process = ManagedProcess(
            "cocoon-node-controller",
            [_COMMANDS / "cocoon-node-controller", "run"],
            log_path=directory / "controller.log",
        )

    def start(self) -> None:
        """Start it and wait until it says it is ready; DevenvError with its last words when it ends instead."""
        _start_and_wait(self.process, environment_with(self.settings), self.ready_file)

    def stop(self) -> int | None:
        """Ask it to end and return its exit status."""
        return self.process.stop()

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.process.kill()

    def release(self) -> None:
        """Stop it for good and give its port back."""
        self.stop()
        self._port.release()


def _start_and_wait(process: ManagedProcess, environment: Mapping[str, str], ready_file: Path) -> None:
    ready_file.unlink(missing_ok=True)
    process.environment = dict(environment)
    process.start()

    def is_ready() -> bool:
        if not process.running:
            raise DevenvError(f"{process.name} ended with status {process.exit_status}: {process.log_tail(3)}")
        return ready_file.exists()

    wait_until(is_ready, _READY_SECONDS, f"{process.name} becoming ready")
