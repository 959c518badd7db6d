"""CocoonSets as far as decisions ask: whether one is there, suspended, or going, and where it hibernated.

Why this exists: "the set is gone" removes snapshots, and three answers look like it that are not. The API group may not
be installed, or not yet; we may not be allowed to read it; a copy may lag. So a set is gone only by an uncached answer
that names it, after the list has synced once; everything else is "not served", "not read" or "missing".
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from common.snapshot_words import Owner
from controller.cocoon_keys import SETS_API, STASH, set_path
from controller.deletion.model import NO_SET, SetFacts, SetStanding
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, NotFound
from controller.kube.objects import Change
from controller.kube.reflector import Reflector, ReflectorLimits
from controller.kube.served import ServedProbe

# A group that was served and is not any more may be an API server that has just started.
_DOUBT_SECONDS = 60.0


class _Annotations(msgspec.Struct, gc=False, rename={"stash": STASH}):
    stash: Any = None


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: _Annotations | None = None


class _Spec(msgspec.Struct, gc=False):
    suspend: Any = None


class SetRecord(msgspec.Struct, gc=False):
    """One CocoonSet."""

    metadata: _Metadata
    spec: _Spec | None = None

    def facts(self, *, confirmed: bool) -> SetFacts:
        """Return what decisions ask about a set that exists."""
        annotations = self.metadata.annotations
        stash = annotations.stash if annotations is not None and isinstance(annotations.stash, str) else ""
        return SetFacts(
            SetStanding.EXISTS,
            confirmed=confirmed,
            deleting=self.metadata.deletion_timestamp is not None,
            suspended=self.spec is not None and self.spec.suspend is True,
            hibernated_on_node=stash,
        )


class SetWatch:
    """The copy of all CocoonSets, and uncached reads of single ones. `run` until cancelled."""

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[Change[SetRecord]], None] = lambda _: None,
        *,
        limits: ReflectorLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` hears of each change after the copy has it; `clock` gives monotonic seconds."""
        self.reflector = Reflector(client, f"{SETS_API}/cocoonsets", SetRecord, on_change, limits=limits)
        self._client = client
        self._clock = clock
        self._probe = ServedProbe(client, self.reflector, "CocoonSets", clock=clock)
        self._decode = msgspec.json.Decoder(SetRecord).decode

    @property
    def is_served(self) -> bool:
        """False once the API has said that it does not serve CocoonSets, and as long as it says so."""
        since = self._probe.unserved_since
        return since is None or (self.reflector.has_synced and self._clock() - since < _DOUBT_SECONDS)

    @property
    def has_settled(self) -> bool:
        """Whether decisions can be made: the list has synced, or there is none to sync."""
        return self.reflector.has_synced or not self.is_served

    async def run(self) -> None:
        """Keep the copy, and find out why when there is none."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.reflector.run())
            group.create_task(self._probe.run())

    def cached(self, owner: Owner) -> SetFacts:
        """Return what our copy says about an owner's set."""
        if not owner.set_uid:
            return NO_SET
        if not self.is_served:
            return SetFacts(SetStanding.NOT_SERVED)
        if not self.reflector.has_synced:
            return SetFacts(SetStanding.UNREAD)
        record = self.reflector.items.get(f"{owner.namespace}/{owner.set_name}")
        if record is None or record.metadata.uid != owner.set_uid:
            return SetFacts(SetStanding.MISSING)
        return record.facts(confirmed=False)

    async def read(self, owner: Owner) -> SetFacts:
        """Ask the API itself. Raises KubeError when it does not answer the question."""
        if not owner.set_uid:
            return NO_SET
        path = set_path(owner.namespace, owner.set_name)
        try:
            record = self._decode(await self._client.get_bytes(path))
        except NotFound as error:
            return self._absent(owner, error)
        except msgspec.DecodeError as error:
            raise KubeError(f"the set cannot be read: {error}", reason="InvalidAnswer", request=path) from error
        if record.metadata.uid == owner.set_uid:
            return record.facts(confirmed=True)
        return self._gone()

    def _absent(self, owner: Owner, error: NotFound) -> SetFacts:
        if error.reason == "NotFound" and error.object_name == owner.set_name:
            return self._gone()
        if not self.is_served:
            return SetFacts(SetStanding.NOT_SERVED, confirmed=True)
        return SetFacts(SetStanding.UNREAD)

    def _gone(self) -> SetFacts:
        if not self.reflector.has_synced:
            return SetFacts(SetStanding.UNREAD)
        return SetFacts(SetStanding.GONE, confirmed=True)
