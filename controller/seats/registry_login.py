"""Who we are to a registry, from a docker configuration file.

Why this exists: clusters hand registry logins around as this file, mostly from a mounted Secret that is rotated while
we run. It is read again when it changes; one that is broken keeps the last good login.

Only what stands in the file itself is used. A credential helper is a program of somebody's choice that would run beside
us and is in no image of ours, so naming one is an error that says so, never a silent anonymous try.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from common.file_stamps import FileStamp, file_stamp
from controller.seats.registry_address import RegistryAddress, RegistryConfigError

_MAX_FILE_BYTES = 1024 * 1024
# What older tools put behind the host.
_API_PATHS = ("v1", "v2", "v0")
_TOKEN_USER = "<token>"  # noqa: S105 -- the name that marks a password as an identity token, no secret


@dataclass(frozen=True, slots=True)
class Login:
    """A user name with a password, or a token: `identity_token` is exchanged, `registry_token` sent as it is."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    registry_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """Value of a basic Authorization header; empty without a password."""
        if not self.password:
            return ""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    @property
    def is_anonymous(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.password or self.identity_token or self.registry_token)


ANONYMOUS = Login()


class _Entry(msgspec.Struct, rename=str.lower):
    auth: str = ""
    username: str = ""
    password: str = ""
    identityToken: str = ""  # noqa: N815 -- spelled nearly as in the file
    registryToken: str = ""  # noqa: N815 -- the same


class _File(msgspec.Struct, rename="camel"):
    auths: dict[str, _Entry | None] | None = None
    cred_helpers: dict[str, str] | None = None
    creds_store: str | None = None


def parse_docker_config(content: bytes, address: RegistryAddress) -> Login:
    """Return the login that a docker configuration file has for a registry, `ANONYMOUS` when it has none.

    The entry of the longest path that leads to the repository counts. Raises `RegistryConfigError`, without secrets.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError as error:
        raise RegistryConfigError("InvalidDockerConfig", f"it is no docker configuration: {_safe(error)}") from None
    except UnicodeDecodeError:
        raise RegistryConfigError("InvalidDockerConfig", "it is no docker configuration: not UTF-8") from None
    key, entry = _best(file.auths or {}, address)
    login = _login(key, entry) if entry is not None else ANONYMOUS
    if not login.is_anonymous:
        return login
    helper = _best(file.cred_helpers or {}, address)[1] or file.creds_store
    if helper:
        raise RegistryConfigError(
            "CredentialHelper",
            f"it names the credential helper {helper!r} for {address.origin.authority}; helpers are never run: "
            "give a file with the login in `auths`",
        )
    return ANONYMOUS


def _safe(error: msgspec.MsgspecError) -> str:
    # A validation error names types and paths, keys of `auths` among them, never values.
    return str(error) if isinstance(error, msgspec.ValidationError) else "not JSON"


def _best(entries: Mapping[str, Any], address: RegistryAddress) -> tuple[str, Any]:
    fits = [(len(path), key) for key in entries if (path := _fit(key, address)) is not None]
    if not fits:
        return "", None
    key = max(fits)[1]
    return key, entries[key]


def _fit(key: str, address: RegistryAddress) -> str | None:
    """Return the path of a key of `auths` when it leads to the registry's repositories."""
    try:
        parts = urlsplit(key if "://" in key else f"//{key}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    origin = address.origin
    if host != origin.host or (origin.port != port and not (port is None and origin.is_default_port)):
        return None
    path = parts.path.strip("/")
    if path in _API_PATHS:
        path = ""
    return path if f"{address.path}/".startswith(f"{path}/" if path else "") else None


def _login(key: str, entry: _Entry) -> Login:
    user, password = entry.username, entry.password
    if entry.auth:
        user, password = _decode(key, entry.auth)
    if user == _TOKEN_USER:
        return Login(identity_token=password)
    if entry.identityToken or entry.registryToken:
        return Login(identity_token=entry.identityToken, registry_token=entry.registryToken)
    return Login(user, password)


def _decode(key: str, text: str) -> tuple[str, str]:
    try:
        decoded = base64.b64decode(text, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise RegistryConfigError(
            "InvalidDockerConfig", f"`auth` of {key!r} is not the base64 of USER:PASSWORD"
        ) from None
    # Some writers pad the text with NULs.
    user, colon, password = decoded.rstrip("\0").partition(":")
    if not colon:
        raise RegistryConfigError("InvalidDockerConfig", f"`auth` of {key!r} is not the base64 of USER:PASSWORD")
    return user, password


class LoginFile:
    """The login from a file that may change. `problem` says what is wrong with the file since the last look."""

    def __init__(self, path: str | None, address: RegistryAddress) -> None:
        """Read the file now, if one is named. Raises `RegistryConfigError`."""
        self.problem = ""
        self._path = path
        self._address = address
        self._stamp: FileStamp | None = None
        self._login = ANONYMOUS
        if path is not None:
            self._login = self._read(path)

    def current(self) -> Login:
        """Return the newest good login; reads the file when it changed. Never raises."""
        if self._path is None:
            return ANONYMOUS
        try:
            if self._stamp != file_stamp(os.stat(self._path)):
                self._login = self._read(self._path)
            self.problem = ""
        except (OSError, RegistryConfigError) as error:
            self.problem = str(error)
        return self._login

    def _read(self, path: str) -> Login:
        try:
            # Before the content: a change in between is then seen at the next look.
            stamp = file_stamp(os.stat(path))
            with open(path, "rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
        except OSError as error:
            raise RegistryConfigError("DockerConfigUnreadable", f"{path}: {error.strerror}") from None
        if len(content) > _MAX_FILE_BYTES:
            raise RegistryConfigError("InvalidDockerConfig", f"{path}: larger than 1 MiB, so no docker configuration")
        try:
            login = parse_docker_config(content, self._address)
        except RegistryConfigError as error:
            raise RegistryConfigError(error.reason, f"{path}: {error}") from None
        if not login.is_anonymous and not self._address.origin.keeps_secrets:
            raise RegistryConfigError(
                "PlainText", f"{self._address.origin}: a login is only sent over https, or to this machine itself"
            )
        self._stamp = stamp
        return login
