"""Where a VM's snapshots are in a registry: the configured base, the repository of a VM name, and what paths may hold.

Why this exists: a VM name becomes part of a URL that is asked and deleted by. A name that would lead elsewhere is no
repository, and is never sent.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

HIBERNATE_TAG = "hibernate"

_MAX_REPOSITORY = 255
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class RegistryConfigError(ValueError):
    """The registry cannot be used as it is configured. `reason` is stable; the text says what is wrong and where."""

    def __init__(self, reason: str, message: str) -> None:
        """`message` holds no secret."""
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a credential is for. `host` is in lower case, an IPv6 address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def is_default_port(self) -> bool:
        """Whether the port need not be written."""
        return _DEFAULT_PORTS[self.scheme] == self.port

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def keeps_secrets(self) -> bool:
        """Whether a password may be sent there."""
        return self.scheme == "https" or self.is_loopback

    @property
    def authority(self) -> str:
        """`host` or `host:port`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.is_default_port else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return it as the start of a URL."""
        return f"{self.scheme}://{self.authority}"


def origin_of(url: str) -> Origin | None:
    """Return where a URL leads; None when it is no absolute http or https URL, or carries a user name."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return Origin(parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port)


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """The configured base: where the registry is, and the path that stands before every VM name (may be empty)."""

    origin: Origin
    path: str

    def repository(self, vm_name: str) -> str | None:
        """Return the repository of a VM's snapshots; None when no registry can have one of that name."""
        repository = f"{self.path}/{vm_name}" if self.path else vm_name
        if "/" in vm_name or len(repository) > _MAX_REPOSITORY or not _REPOSITORY.fullmatch(repository):
            return None
        return repository

    def manifest_url(self, repository: str, reference: str = HIBERNATE_TAG) -> str:
        """Return the URL of a manifest."""
        return f"{self.origin}/v2/{repository}/manifests/{reference}"

    def blob_url(self, repository: str, digest: str) -> str:
        """Return the URL of a blob."""
        return f"{self.origin}/v2/{repository}/blobs/{digest}"

    def __str__(self) -> str:
        """Return it as it is configured."""
        return f"{self.origin}/{self.path}" if self.path else str(self.origin)


def parse_registry(text: str) -> RegistryAddress:
    """Return the base `http[s]://HOST[:PORT][/PATH]`. Raises `RegistryConfigError`; never shows a password in it."""
    origin = origin_of(text)
    if origin is None:
        hint = " without a user name in it" if "@" in text else ""
        raise RegistryConfigError("InvalidRegistry", f"the registry must be http[s]://HOST[:PORT][/PATH]{hint}")
    parts = urlsplit(text)
    path = parts.path.strip("/")
    if parts.query or parts.fragment or (path and not _REPOSITORY.fullmatch(path)):
        raise RegistryConfigError(
            "InvalidRegistry", f"the registry's path must be a repository in small letters, such as vms/prod: {path!r}"
        )
    return RegistryAddress(origin, path)
