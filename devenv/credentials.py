"""Certificates, tokens and kubeconfig files of one local control plane: made new for each, gone with its folder."""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import trustme

CONTROLLER_NAMESPACE = "cocoon-system"
CONTROLLER_ACCOUNT = "cocoon-node-controller"
CONTROLLER_USER = f"system:serviceaccount:{CONTROLLER_NAMESPACE}:{CONTROLLER_ACCOUNT}"

_CONTROLLER_GROUPS = (
    "system:serviceaccounts",
    f"system:serviceaccounts:{CONTROLLER_NAMESPACE}",
    "system:authenticated",
)
_ADMINISTRATORS = ("system:masters",)


@dataclass(frozen=True, slots=True)
class User:
    """One line of the API server's token file."""

    name: str
    groups: tuple[str, ...]
    token: str = field(default_factory=lambda: secrets.token_hex(16))


def default_users() -> dict[str, User]:
    """Return who may talk to the API server, by the name of the kubeconfig file each gets.

    `controller` has the rights the shipped RBAC gives it and no others; `other` is a second administrator, for tests
    in which somebody else writes.
    """
    return {
        "admin": User("admin", _ADMINISTRATORS),
        "other": User("somebody-else", _ADMINISTRATORS),
        "controller": User(CONTROLLER_USER, _CONTROLLER_GROUPS),
        "scheduler": User("system:kube-scheduler", ()),
        # An administrator here, because without service-account tokens its controllers share one identity.
        "controller-manager": User("system:kube-controller-manager", _ADMINISTRATORS),
    }


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where the files of one control plane lie, and its users."""

    directory: Path
    users: Mapping[str, User]

    @property
    def ca_file(self) -> Path:
        """CA certificate of the API server's own certificate."""
        return self.directory / "ca.crt"

    @property
    def certificate_file(self) -> Path:
        """Certificate chain of the API server."""
        return self.directory / "apiserver.crt"

    @property
    def key_file(self) -> Path:
        """Private key of the API server."""
        return self.directory / "apiserver.key"

    @property
    def service_account_key_file(self) -> Path:
        """Key that signs and checks service-account tokens."""
        return self.directory / "service-account.key"

    @property
    def token_file(self) -> Path:
        """The API server's token file."""
        return self.directory / "tokens.csv"

    def kubeconfig(self, user: str) -> Path:
        """Kubeconfig file of the user with this key in `users`."""
        return self.directory / f"{user}.kubeconfig"


def create_credentials(directory: Path, api_url: str) -> Credentials:
    """Write all files for an API server at `api_url` into `directory`, readable by their owner only."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    credentials = Credentials(directory, default_users())
    authority = trustme.CA(organization_name="cocoon-node development")
    server = authority.issue_cert("127.0.0.1", "localhost")
    _write(credentials.ca_file, authority.cert_pem.bytes())
    _write(credentials.certificate_file, b"".join(blob.bytes() for blob in server.cert_chain_pems))
    _write(credentials.key_file, server.private_key_pem.bytes())
    _write(credentials.service_account_key_file, trustme.CA().private_key_pem.bytes())
    lines = [f'{u.token},{u.name},{key},"{",".join(u.groups)}"' for key, u in credentials.users.items()]
    _write(credentials.token_file, ("\n".join(lines) + "\n").encode())
    for key, user in credentials.users.items():
        _write(credentials.kubeconfig(key), _kubeconfig(api_url, authority.cert_pem.bytes(), user).encode())
    return credentials


def _kubeconfig(api_url: str, ca: bytes, user: User) -> str:
    # JSON is YAML, and no writer of YAML is needed.
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [
            {
                "name": "local",
                "cluster": {"server": api_url, "certificate-authority-data": base64.b64encode(ca).decode()},
            }
        ],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user.name}}],
    }
    return json.dumps(content, indent=2) + "\n"


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
