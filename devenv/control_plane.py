"""Runs a real Kubernetes control plane on loopback: etcd, API server, scheduler, controller manager.

Tests and the demonstration use the programs a cluster uses, because what matters here (server-side apply, leases,
taints, scheduling, eviction) is exactly what a stand-in would get wrong. Everything lives in one folder and ends with
the process that started it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from devenv import programs
from devenv.credentials import CONTROLLER_USER, Credentials, create_credentials
from devenv.errors import DevenvError
from devenv.kube_api import ApiError, KubeApi, UnreachableError
from devenv.ports import PortLease
from devenv.processes import ManagedProcess, wait_until
from devenv.toolchain import REPOSITORY

# All rights there are: tests use every feature.
RBAC_FILES = (REPOSITORY / "deploy/base/rbac.yaml", REPOSITORY / "deploy/overlays/seat-release/rbac.yaml")

_READY_SECONDS = 120.0
# The API server makes this namespace itself, a moment after it calls itself ready; the shipped RBAC lives in it too.
_LEASE_NAMESPACE = "/api/v1/namespaces/kube-node-lease"

# The controllers of the manager that act on Nodes, pods and namespaces; the rest would only cost CPU.
_CONTROLLERS = (
    "disruption-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "serviceaccount-controller",
    "taint-eviction-controller",
)

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {"level": "RequestResponse", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
        # What the controller reads before it removes something; lists and watches are not among it.
        {
            "level": "Metadata",
            "verbs": ["get"],
            "users": [CONTROLLER_USER],
            "resources": [
                {"group": "", "resources": ["pods"]},
                {"group": "cocoonset.cocoonstack.io", "resources": ["cocoonsets"]},
            ],
            "omitStages": ["RequestReceived"],
        },
        {"level": "None"},
    ],
}


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may choose about a control plane.

    Times are whole seconds, as the flags take them. `extra_flags` maps a program's name to flags appended to its
    command line. `durable` makes etcd sync to disk, for tests that kill it. `rbac_files` are the rights applied.
    """

    scheduler: bool = True
    controller_manager: bool = True
    node_monitor_period_seconds: int = 5
    node_monitor_grace_period_seconds: int = 50
    durable: bool = False
    rbac_files: Sequence[Path] = RBAC_FILES
    extra_flags: Mapping[str, Sequence[str]] = field(default_factory=dict)


class ControlPlane:
    """One control plane in `directory`: `start`, `stop`, and restarts of single parts.

    Use it as a context manager. After `start`, the API answers, the shipped RBAC is applied, and the kubeconfig files
    exist.
    """

    def __init__(self, directory: Path, options: Options | None = None) -> None:
        self.directory = directory
        self.options = options or Options()
        self.audit_log = directory / "audit.log"
        self._leases: list[PortLease] = []
        self._credentials: Credentials | None = None
        self._parts: dict[str, ManagedProcess] = {}
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Build what is missing, start all parts, and wait until the API server is ready.

        Raises DevenvError with the end of the failing program's log; nothing is left running then.
        """
        paths = programs.ensure(programs.CONTROL_PLANE)
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._prepare(paths)
            self._parts["etcd"].start()
            self.start_api_server()
            with self.client("admin") as admin:
                for file in self.options.rbac_files:
                    admin.apply_file(file)
            for name in ("kube-scheduler", "kube-controller-manager"):
                if name in self._parts:
                    self._parts[name].start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything, in the reverse order of the start; calling it again does nothing.

        The data is thrown away with the folder, so nothing needs to end gently.
        """
        for part in reversed(self._parts.values()):
            part.kill()
        for lease in self._leases:
            lease.release()

    def part(self, name: str) -> ManagedProcess:
        """Return one program by name, to signal, kill or start it again; a test that does so puts it back."""
        return self._parts[name]

    def start_api_server(self) -> None:
        """Start the API server (again) on its port and wait until it is ready."""
        self._parts["kube-apiserver"].start()
        self.wait_ready()

    def restart_api_server(self) -> None:
        """Kill the API server and start it again on the same port, with the same data."""
        self._parts["kube-apiserver"].kill()
        self.start_api_server()

    def wait_ready(self) -> None:
        """Wait until the API server says it is ready."""
        wait_until(self._is_ready, _READY_SECONDS, f"the API server at {self.url} becoming ready")

    def kubeconfig(self, user: str = "admin") -> Path:
        """Return the kubeconfig file of `admin`, `other` (a second administrator) or `controller`."""
        return self._known_credentials().kubeconfig(user)

    def client(self, user: str = "admin") -> KubeApi:
        """Return a client with the rights of that user; the caller closes it."""
        credentials = self._known_credentials()
        trust = ssl.create_default_context(cafile=str(credentials.ca_file))
        return KubeApi(self.url, trust, f"Bearer {credentials.users[user].token}")

    def _known_credentials(self) -> Credentials:
        if self._credentials is None:
            raise DevenvError("the control plane was not started")
        return self._credentials

    def _is_ready(self) -> bool:
        for name in ("etcd", "kube-apiserver"):
            part = self._parts[name]
            if not part.running:
                raise DevenvError(f"{name} ended with status {part.exit_status}: {part.log_tail(3)}")
        try:
            with self.client() as admin:
                return admin.get_text("/readyz") == "ok" and admin.find(_LEASE_NAMESPACE) is not None
        except (ApiError, UnreachableError):
            return False

    def _prepare(self, paths: Mapping[str, Path]) -> None:
        self._leases = [PortLease() for _ in range(3)]
        client_port, peer_port, api_port = (lease.port for lease in self._leases)
        self.url = f"https://127.0.0.1:{api_port}"
        self._credentials = create_credentials(self.directory / "credentials", self.url)
        etcd_url = f"http://127.0.0.1:{client_port}"
        flags = {
            "etcd": self._etcd_flags(etcd_url, f"http://127.0.0.1:{peer_port}"),
            "kube-apiserver": self._api_server_flags(self._credentials, etcd_url, api_port),
        }
        if self.options.scheduler:
            flags["kube-scheduler"] = self._client_flags("scheduler")
        if self.options.controller_manager:
            flags["kube-controller-manager"] = self._client_flags("controller-manager") + self._manager_flags()
        for name, own_flags in flags.items():
            command: list[str | Path] = [paths[name], *own_flags, *self.options.extra_flags.get(name, ())]
            self._parts[name] = ManagedProcess(name, command, log_path=self.directory / f"{name}.log")

    def _etcd_flags(self, client_url: str, peer_url: str) -> list[str]:
        return [
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client_url}",
            f"--advertise-client-urls={client_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--log-level=warn",
            *([] if self.options.durable else ["--unsafe-no-fsync"]),
        ]

    def _api_server_flags(self, credentials: Credentials, etcd_url: str, port: int) -> list[str]:
        policy = self.directory / "audit-policy.json"
        policy.write_text(json.dumps(_AUDIT_POLICY))
        return [
            f"--etcd-servers={etcd_url}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--tls-cert-file={credentials.certificate_file}",
            f"--tls-private-key-file={credentials.key_file}",
            f"--service-account-key-file={credentials.service_account_key_file}",
            f"--service-account-signing-key-file={credentials.service_account_key_file}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={credentials.token_file}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            "--profiling=false",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            # A write is in the log, as received, before anybody can see its effect.
            "--audit-log-mode=blocking",
        ]

    def _client_flags(self, user: str) -> list[str]:
        return [f"--kubeconfig={self.kubeconfig(user)}", "--leader-elect=false", "--secure-port=0"]

    def _manager_flags(self) -> list[str]:
        return [
            f"--controllers={','.join(_CONTROLLERS)}",
            f"--node-monitor-period={self.options.node_monitor_period_seconds}s",
            f"--node-monitor-grace-period={self.options.node_monitor_grace_period_seconds}s",
        ]
