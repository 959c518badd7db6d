"""A real OCI registry on loopback, and what a VM runtime does with it: push hibernate snapshots, ask which is there.

What is pushed has the manifest and the config blob of a real snapshot, and no data: nothing here runs a VM from it.
"""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from devenv import programs
from devenv.errors import DevenvError
from devenv.ports import PortLease
from devenv.processes import ManagedProcess, wait_until

HIBERNATE_TAG = "hibernate"
_SNAPSHOT_TYPE = "application/vnd.cocoonstack.snapshot.v1+json"
_CONFIG_TYPE = "application/vnd.cocoonstack.snapshot.config.v1+json"
_MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_STARTS_WITHIN_SECONDS = 30.0
_TIMEOUT_SECONDS = 10.0


class RegistryError(DevenvError):
    """The registry did not do what was asked."""


class RegistryProcess:
    """One `crane registry serve` with its blobs below `directory`, on a leased port. Use it as a context manager.

    It keeps manifests and tags in memory: stopped and started again it has lost them, as a registry that was wiped.
    """

    def __init__(self, directory: Path) -> None:
        self._lease = PortLease()
        self.address = f"127.0.0.1:{self._lease.port}"
        directory.mkdir(parents=True, exist_ok=True)
        blobs = directory / "blobs"
        blobs.mkdir(exist_ok=True)
        crane = programs.ensure(["crane"])["crane"]
        command: list[str | Path] = [crane, "registry", "serve", "--address", self.address, "--disk", blobs]
        self.process = ManagedProcess("registry", command, log_path=directory / "registry.log")

    @property
    def url(self) -> str:
        """Where it serves, without a repository path."""
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def start(self) -> None:
        """Start it and wait until it answers; DevenvError with its last words when it ends instead."""
        self.process.start()
        wait_until(self._answers, _STARTS_WITHIN_SECONDS, f"the registry at {self.address} answering")

    def stop(self) -> None:
        """End it at once; nothing of it is worth a gentle end."""
        self.process.kill()

    def release(self) -> None:
        """Stop it for good and give its port back."""
        self.stop()
        self._lease.release()

    def _answers(self) -> bool:
        if not self.process.running:
            raise DevenvError(f"the registry ended with status {self.process.exit_status}: {self.process.log_tail(3)}")
        try:
            socket.create_connection(("127.0.0.1", self._lease.port), timeout=1).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class PushedSnapshot:
    """What a registry says about a VM's hibernate snapshot; `life` is the stand-in runtime's own, see there."""

    snapshot_id: str
    life: str


class SnapshotRegistry:
    """The repositories of VMs below `base`, such as `http://127.0.0.1:5000/vms`."""

    def __init__(self, base: str) -> None:
        self.base = base
        server, _, path = base.removeprefix("http://").partition("/")
        self._prefix = f"{path}/" if path else ""
        self._client = httpx.Client(base_url=f"http://{server}", timeout=_TIMEOUT_SECONDS, trust_env=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def push(self, vm: str, snapshot: PushedSnapshot) -> None:
        """Push a snapshot's config blob and manifest under the tag `hibernate`. Raises RegistryError."""
        config = {
            "schemaVersion": "1",
            "snapshotId": snapshot.snapshot_id,
            "description": snapshot.life,
            "image": "stand-in",
            "hypervisor": "stand-in",
            "cpu": 1,
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST_TYPE,
            "artifactType": _SNAPSHOT_TYPE,
            "config": self._push_blob(vm, json.dumps(config).encode()) | {"mediaType": _CONFIG_TYPE},
            "layers": [],
        }
        content = json.dumps(manifest).encode()
        self._ask("PUT", self._manifest(vm), content=content, headers={"Content-Type": _MANIFEST_TYPE})

    def find(self, vm: str) -> PushedSnapshot | None:
        """Return what is there under the tag `hibernate`; None when the registry says that nothing is."""
        answer = self._ask("GET", self._manifest(vm), absent=True)
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        config = self._ask("GET", f"/v2/{self._prefix}{vm}/blobs/{answer.json()['config']['digest']}").json()
        return PushedSnapshot(config["snapshotId"], config.get("description", ""))

    def delete(self, vm: str) -> None:
        """Delete the tag, if there is one."""
        self._ask("DELETE", self._manifest(vm), absent=True)

    def _push_blob(self, vm: str, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        begun = self._ask("POST", f"/v2/{self._prefix}{vm}/blobs/uploads/")
        self._ask("PUT", begun.headers["Location"], params={"digest": digest}, content=content)
        return {"digest": digest, "size": len(content)}

    def _manifest(self, vm: str) -> str:
        return f"/v2/{self._prefix}{vm}/manifests/{HIBERNATE_TAG}"

    def _ask(self, method: str, path: str, *, absent: bool = False, **arguments: Any) -> httpx.Response:  # noqa: ANN401 -- httpx' own arguments, passed on
        try:
            answer = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise RegistryError(f"{self.base}: {error}") from error
        if answer.is_success or (absent and answer.status_code == httpx.codes.NOT_FOUND):
            return answer
        raise RegistryError(f"{method} {self.base}: HTTP {answer.status_code}")
