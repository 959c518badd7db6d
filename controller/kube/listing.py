"""One whole list of a collection, read page by page: all of it, or an error and nothing.

Why this exists: a hundred thousand objects are two hundred pages, and each waits for the one before: the continue token
is in it. API servers write it before the items, so the next page is asked for first and made while this one is decoded.
"""

import asyncio
from collections.abc import Mapping
from typing import Generic

import msgspec

from common.tasks import end_tasks
from controller.kube.errors import Gone
from controller.kube.objects import ListMeta, T, WatchTransport, list_page_type, object_key

_MAX_EXPIRED_LISTS = 3
# A continue token is a few hundred bytes.
_HEAD_BYTES = 4096


class ExpiredError(Exception):
    """The version we wanted to continue from is gone; only a new list helps."""


class BrokenError(Exception):
    """An answer cannot be read on; what follows starts again at the last version seen."""


class _Head(msgspec.Struct):
    metadata: ListMeta


_decode_head = msgspec.json.Decoder(_Head).decode


class PagedList(Generic[T]):
    """Reads the collection at `path` with `query` (selectors), `page_size` objects at once."""

    def __init__(
        self, transport: WatchTransport, path: str, item_type: type[T], query: Mapping[str, str], page_size: int
    ) -> None:
        """Nothing is asked yet."""
        self._transport = transport
        self._path = path
        self._query = dict(query)
        self._page_size = page_size
        self._decode_page = msgspec.json.Decoder(list_page_type(item_type)).decode

    async def read_all(self) -> tuple[dict[str, T], str]:
        """Return all objects by `namespace/name` (or `name`) and the list's version.

        Raises a KubeError of the transport, `msgspec.DecodeError`, BrokenError, and ExpiredError when even a list
        without pages expires.
        """
        for _ in range(_MAX_EXPIRED_LISTS):
            try:
                return await self._read(self._page_size)
            except ExpiredError:
                continue
        # Pages keep expiring under us: one unpaged list cannot.
        return await self._read(0)

    async def _read(self, page_size: int) -> tuple[dict[str, T], str]:
        found: dict[str, T] = {}
        query = self._query | ({"limit": str(page_size)} if page_size else {})
        asked = asyncio.create_task(self._get(query))
        try:
            while True:
                body = await asked
                token = early_token(body)
                if token:
                    asked = asyncio.create_task(self._get(query | {"continue": token}))
                    # One turn of the loop, in which the request is sent.
                    await asyncio.sleep(0)
                page = self._decode_page(body)
                for item in page.items or ():
                    found[object_key(item.metadata)] = item
                if not page.metadata.resource_version:
                    raise BrokenError("a list without a resource version")
                if not page.metadata.next_token:
                    return found, page.metadata.resource_version
                if page.metadata.next_token != token:
                    await end_tasks([asked])
                    asked = asyncio.create_task(self._get(query | {"continue": page.metadata.next_token}))
        finally:
            await end_tasks([asked])

    async def _get(self, query: Mapping[str, str]) -> bytes:
        try:
            return await self._transport.get_bytes(self._path, query)
        except Gone as gone:
            raise ExpiredError("the list's next page has expired") from gone


def early_token(page: bytes) -> str:
    """Return the continue token of a page from its first bytes, empty when it does not stand there."""
    head, found, _ = page[:_HEAD_BYTES].partition(b',"items":')
    if not found:
        return ""
    try:
        return _decode_head(head + b"}").metadata.next_token
    except msgspec.DecodeError:
        return ""
