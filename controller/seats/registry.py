"""Whether a VM's hibernate snapshot is in the registry, which one it is, and the removal of its tag.

Why this exists: the answer decides whether a VM is booted fresh, so the three answers are kept apart with care.
Absent is only what the registry itself says of the manifest; present is only a manifest of a VM snapshot, read whole
and with the digest it claims; everything else, however it looks, is unknown and asked again later.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from controller.seats.model import ManifestAnswer, RegistryAnswer, TagDeletion
from controller.seats.registry_address import HIBERNATE_TAG, parse_registry
from controller.seats.registry_auth import RegistryAuth, refused
from controller.seats.registry_http import Answer, RegistryHttp, RegistryLimits, RegistryUnavailable, Request
from controller.seats.registry_login import LoginFile

_ARTIFACT_TYPES: Final = frozenset({f"application/vnd.cocoonstack.snapshot.v{version}+json" for version in (1, 2)})
_CONFIG_TYPE: Final = "application/vnd.cocoonstack.snapshot.config.v1+json"
# All of them and anything else: a registry that has only a kind which is not accepted answers 404, as if it had none.
_ACCEPT: Final = ", ".join(
    [
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "*/*",
    ]
)
_LARGEST_MANIFEST: Final = 4 * 1024 * 1024
# It lists every file of the snapshot with its sparse ranges.
_LARGEST_CONFIG: Final = 8 * 1024 * 1024
_PULL, _DELETE = "pull", "delete,pull"
# Codes of a 404 that are about us, not about the manifest.
_NOT_ABSENT: Final = frozenset({"UNAUTHORIZED", "DENIED", "TOOMANYREQUESTS", "UNSUPPORTED"})
_KEEPS: Final = frozenset({400, 405})
_DELETED: Final = frozenset({200, 202, 204})
_MOST_CONFIGS: Final = 10_000
_LOGIN_LOOK_SECONDS: Final = 2.0

Result = TypeVar("Result")


class _Descriptor(msgspec.Struct, rename="camel"):
    media_type: str = ""
    digest: str = ""
    size: int = -1


class _Manifest(msgspec.Struct, rename="camel"):
    artifact_type: str = ""
    media_type: str = ""
    config: _Descriptor | None = None


class _Config(msgspec.Struct, rename="camel"):
    snapshot_id: str = ""


class _Error(msgspec.Struct):
    code: str


class _Errors(msgspec.Struct):
    errors: list[_Error]


class Registry:
    """One registry. Every method answers within a limited time and never raises for what the registry does."""

    def __init__(
        self,
        base: str,
        *,
        docker_config_file: str | None = None,
        ca_file: str | None = None,
        limits: RegistryLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files named, connect to nothing yet. Raises `RegistryConfigError`.

        `base` is `http[s]://HOST[:PORT][/PATH]`; `ca_file` holds its authorities, PEM, the system's by default; `clock`
        gives monotonic seconds.
        """
        self.address = parse_registry(base)
        self._limits = limits or RegistryLimits()
        self._clock = clock
        self._file = LoginFile(docker_config_file, self.address)
        self._login = self._file.current()
        self._login_read_at = clock()
        self._http = RegistryHttp(self.address.origin, ca_file=ca_file, limits=self._limits, clock=clock)
        self._auth = RegistryAuth(self._http, self.address.origin, clock)
        self._snapshot_ids: OrderedDict[str, str] = OrderedDict()

    @property
    def problem(self) -> str:
        """What is wrong with the docker configuration file since the last look; empty while nothing is."""
        return self._file.problem

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def manifest(self, vm_name: str, *, with_snapshot_id: bool = False) -> ManifestAnswer:
        """Return whether the hibernate snapshot of a VM is there; `why` says why that is not known.

        `with_snapshot_id` asks for its id too, which stays empty when only that cannot be read.
        """
        try:
            return await self._within(lambda: self._manifest(vm_name, with_snapshot_id=with_snapshot_id))
        except RegistryUnavailable as error:
            return ManifestAnswer(RegistryAnswer.UNKNOWN, why=str(error))

    async def delete_tag(self, vm_name: str) -> TagDeletion:
        """Delete the tag `hibernate` of a VM, and nothing else: the manifest may have other tags."""
        try:
            return await self._within(lambda: self._delete(vm_name))
        except RegistryUnavailable:
            return TagDeletion.FAILED

    async def _within(self, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            async with asyncio.timeout(self._limits.total_seconds):
                return await work()
        except TimeoutError:
            raise RegistryUnavailable(f"no answer within {self._limits.total_seconds:g} s") from None

    async def _manifest(self, vm_name: str, *, with_snapshot_id: bool) -> ManifestAnswer:
        repository = self._repository(vm_name)
        url = self.address.manifest_url(repository)
        request = Request("GET", url, accept=_ACCEPT, largest_bytes=_LARGEST_MANIFEST)
        answer = await self._send(request, repository, _PULL)
        if answer.status == 404 and answer.is_own and _is_absent(answer):
            return ManifestAnswer(RegistryAnswer.ABSENT, why=_said(answer))
        if answer.status != 200:
            raise RegistryUnavailable(_said(answer))
        manifest, digest = _read_manifest(answer)
        snapshot_id = await self._snapshot_id(repository, manifest) if with_snapshot_id else ""
        return ManifestAnswer(RegistryAnswer.PRESENT, snapshot_id=snapshot_id, digest=digest)

    async def _delete(self, vm_name: str) -> TagDeletion:
        repository = self._repository(vm_name)
        answer = await self._send(Request("DELETE", self.address.manifest_url(repository)), repository, _DELETE)
        if answer.status in _DELETED:
            return TagDeletion.DELETED
        if answer.status in _KEEPS:
            return TagDeletion.KEPT
        if answer.status != 404:
            return TagDeletion.FAILED
        # Some say so of every tag, because they delete by digest only.
        left = await self._manifest(vm_name, with_snapshot_id=False)
        return TagDeletion.ABSENT if left.answer is RegistryAnswer.ABSENT else TagDeletion.KEPT

    async def _snapshot_id(self, repository: str, manifest: _Manifest) -> str:
        """Return the id in the config blob; empty when it cannot be read."""
        config = manifest.config
        if config is None or config.media_type != _CONFIG_TYPE or not config.digest.startswith("sha256:"):
            return ""
        if (known := self._snapshot_ids.get(config.digest)) is not None:
            self._snapshot_ids.move_to_end(config.digest)
            return known
        request = Request("GET", self.address.blob_url(repository, config.digest), largest_bytes=_LARGEST_CONFIG)
        try:
            answer = await self._send(request, repository, _PULL)
        except RegistryUnavailable:
            return ""
        if answer.status != 200 or not answer.is_whole or _digest(answer.body) != config.digest:
            return ""
        try:
            snapshot_id = msgspec.json.decode(answer.body, type=_Config).snapshot_id
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""
        self._snapshot_ids[config.digest] = snapshot_id
        if len(self._snapshot_ids) > _MOST_CONFIGS:
            self._snapshot_ids.popitem(last=False)
        return snapshot_id

    async def _send(self, request: Request, repository: str, actions: str) -> Answer:
        """Send it as whoever we are; once more when the registry says how to log in."""
        if self._clock() - self._login_read_at > _LOGIN_LOOK_SECONDS:
            self._login_read_at = self._clock()
            self._login = await asyncio.to_thread(self._file.current)
        login = self._login
        shown = self._auth.known(repository, actions, login)
        answer = await self._http.send(replace(request, authorization=shown))
        if answer.status == 401 and answer.is_own:
            shown = await self._auth.answer(answer.challenges, repository, actions, login, shown)
            answer = await self._http.send(replace(request, authorization=shown))
            if answer.status == 401:
                raise refused(login)
        return answer

    def _repository(self, vm_name: str) -> str:
        repository = self.address.repository(vm_name)
        if repository is None:
            raise RegistryUnavailable(f"no registry can have a repository of that name: {self.address}/{vm_name}")
        return repository


def _read_manifest(answer: Answer) -> tuple[_Manifest, str]:
    """Return a VM snapshot's manifest and its digest. Raises `RegistryUnavailable` for anything else."""
    if not answer.is_whole:
        raise RegistryUnavailable(f"the tag {HIBERNATE_TAG} leads to something too large or packed to be a manifest")
    digest = _digest(answer.body)
    if answer.digest.startswith("sha256:") and answer.digest != digest:
        raise RegistryUnavailable("the manifest is not the one it claims to be: its digest differs")
    try:
        manifest = msgspec.json.decode(answer.body, type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RegistryUnavailable(f"the tag {HIBERNATE_TAG} leads to something that is no manifest") from None
    if manifest.artifact_type not in _ARTIFACT_TYPES or manifest.config is None:
        raise RegistryUnavailable(f"the tag {HIBERNATE_TAG} leads to something that is no VM snapshot")
    return manifest, digest


def _is_absent(answer: Answer) -> bool:
    codes = _codes(answer)
    return bool(codes) and not _NOT_ABSENT & set(codes)


def _codes(answer: Answer) -> list[str]:
    """Return the codes of a registry's error body; none when the body is something else."""
    try:
        return [error.code for error in msgspec.json.decode(answer.body, type=_Errors).errors if error.code]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def _said(answer: Answer) -> str:
    """What an answer is in messages: its status and codes. Never its text, which may repeat what it was sent."""
    words = [code for code in _codes(answer) if code.isascii() and code.replace("_", "").isalnum() and len(code) < 40]
    return " ".join([f"HTTP {answer.status}", *words[:3]])


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
