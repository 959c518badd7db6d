"""The Kubernetes API as requests and bytes, without generated models.

A thousand agents mean a hundred lease renewals a second; building model objects for them would cost more than
everything else the controller does. So requests take bytes or plain objects, answers come back as bytes for `msgspec`,
and only the ways of reaching the API come from the official client.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from controller.kube.objects import list_page_type
from controller.kube.retry import CREATE, REPEATABLE, Retry
from controller.kube.transport import KubeTransport

APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML; the API server takes it under this name
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"

_PAGE_SIZE = 500

T = TypeVar("T")


class KubeClient(KubeTransport):
    """One connection pool to one API server. Safe to share between tasks of one event loop.

    Every method raises a KubeError; `timeout_seconds` limits one attempt, not the repetitions.
    """

    async def get_bytes(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry: Retry = REPEATABLE,
    ) -> bytes:
        """The object or list at `path`, such as `/api/v1/nodes/a`."""
        return await self.request("GET", path, query=query, timeout_seconds=timeout_seconds, retry=retry)

    async def list_objects(self, path: str, item_type: type[T], query: Mapping[str, str] | None = None) -> list[T]:
        """All objects of the collection at `path`, read page by page. For a copy that is kept, see `Reflector`."""
        decode = msgspec.json.Decoder(list_page_type(item_type)).decode
        found: list[T] = []
        asked = {**(query or {}), "limit": str(_PAGE_SIZE)}
        while True:
            page = decode(await self.get_bytes(path, asked))
            found += page.items or ()
            if not page.metadata.next_token:
                return found
            asked["continue"] = page.metadata.next_token

    async def create(
        self,
        path: str,
        body: object,
        *,
        field_manager: str = "",
        timeout_seconds: float = 10.0,
        retry: Retry = CREATE,
        lean: bool = False,
    ) -> bytes:
        """POST an object into the collection at `path`; AlreadyExists when the name is taken."""
        query = {"fieldManager": field_manager} if field_manager else None
        return await self.request(
            "POST", path, query=query, body=body, timeout_seconds=timeout_seconds, retry=retry, lean=lean
        )

    async def replace(
        self,
        path: str,
        body: object,
        *,
        field_manager: str = "",
        timeout_seconds: float = 10.0,
        retry: Retry = REPEATABLE,
        lean: bool = False,
    ) -> bytes:
        """PUT the whole object; with a resource version in it, Conflict when the object has changed since."""
        query = {"fieldManager": field_manager} if field_manager else None
        return await self.request(
            "PUT", path, query=query, body=body, timeout_seconds=timeout_seconds, retry=retry, lean=lean
        )

    async def apply(
        self,
        path: str,
        body: object,
        *,
        field_manager: str,
        force: bool = True,
        timeout_seconds: float = 10.0,
        retry: Retry = REPEATABLE,
    ) -> bytes:
        """Server-side apply; `body` is everything this manager wants, what it leaves out is given up."""
        query = {"fieldManager": field_manager, "force": "true" if force else "false"}
        return await self.patch(
            path, body, content_type=APPLY_PATCH, query=query, timeout_seconds=timeout_seconds, retry=retry
        )

    async def merge_patch(
        self,
        path: str,
        body: object,
        *,
        field_manager: str = "",
        timeout_seconds: float = 10.0,
        retry: Retry = REPEATABLE,
        lean: bool = False,
    ) -> bytes:
        """JSON merge patch: null removes a key; with a resource version in it, Conflict when the object has changed."""
        query = {"fieldManager": field_manager} if field_manager else None
        return await self.patch(
            path, body, content_type=MERGE_PATCH, query=query, timeout_seconds=timeout_seconds, retry=retry, lean=lean
        )

    async def patch(
        self,
        path: str,
        body: object,
        *,
        content_type: str,
        query: Mapping[str, str] | None = None,
        timeout_seconds: float = 10.0,
        retry: Retry = REPEATABLE,
        lean: bool = False,
    ) -> bytes:
        """Any patch, by its content type."""
        return await self.request(
            "PATCH",
            path,
            query=query,
            body=body,
            content_type=content_type,
            timeout_seconds=timeout_seconds,
            retry=retry,
            lean=lean,
        )

    async def delete(
        self,
        path: str,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_seconds: int | None = None,
        timeout_seconds: float = 10.0,
        retry: Retry = REPEATABLE,
    ) -> bytes:
        """DELETE; with `uid` or `resource_version`, Conflict when the object there is another one by now."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        preconditions = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        return await self.request("DELETE", path, body=options, timeout_seconds=timeout_seconds, retry=retry)
