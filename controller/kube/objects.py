"""The shapes a reflector reads and tells: object metadata, changes, and the wire forms of list and watch.

Why this exists: generated models cost a hundred times the memory and time; every caller declares the few fields it
wants as a `msgspec` struct and these types are all that is common to them.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class WatchTransport(Protocol):
    """What a reflector needs of an API client. A refused or broken request raises the client's own `KubeError`."""

    async def get_bytes(self, path: str, query: Mapping[str, str]) -> bytes:
        """Return the whole body of a successful GET."""
        ...

    def stream_bytes(
        self, path: str, query: Mapping[str, str], inactivity_seconds: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a GET whose body is read in chunks; silence of `inactivity_seconds` raises."""
        ...


class Metadata(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    """The least a watched object's struct must have under `metadata`; callers may declare a wider one."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Watched(Protocol):
    """What a reflector reads of an object."""

    @property
    def metadata(self) -> Any:  # noqa: ANN401 - a struct of the caller's; protocols cannot name its attributes loosely
        """An object with the attributes of `Metadata`."""
        ...


T = TypeVar("T", bound=Watched)


class ChangeKind(Enum):
    """What happened to an object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One change of a reflector's copy.

    `item` is the new state, or the last state of a deleted object. `seen` is false for a change noticed by comparing
    lists: states in between may have been missed, and of a deleted object `item` is the last state we knew.
    """

    kind: ChangeKind
    key: str
    before: T | None
    item: T
    seen: bool


class ListMeta(msgspec.Struct, rename={"resource_version": "resourceVersion", "next_token": "continue"}):
    """Metadata of one page of a list."""

    resource_version: str = ""
    next_token: str = ""


class RawEvent(msgspec.Struct, gc=False):
    """One line of a watch whose object is no item: a bookmark, an error, or one that cannot be read."""

    type: str
    object: msgspec.Raw


class Bookmark(msgspec.Struct):
    """The object of a BOOKMARK event."""

    metadata: Metadata


def object_key(metadata: Any) -> str:  # noqa: ANN401 - as in Watched
    """Return `namespace/name`, or `name` of a cluster-wide object, from its metadata."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else str(metadata.name)


def event_type(item_type: type[Any]) -> Any:  # noqa: ANN401 - a type made at run time
    """Build the struct of one line of a watch with `type` and `object`, so that a line is read once."""
    fields = [("type", str), ("object", item_type)]
    return msgspec.defstruct(f"{item_type.__name__}Event", fields, gc=False)


def list_page_type(item_type: type[Any]) -> Any:  # noqa: ANN401 - a type made at run time
    """Build the struct of one list page with `metadata` and `items`; some servers send null for no items."""
    return msgspec.defstruct(
        f"{item_type.__name__}List",
        [("metadata", ListMeta), ("items", list[item_type] | None, None)],  # type: ignore[valid-type]
    )
