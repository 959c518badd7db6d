"""Tokens that lead to the next page of a list.

Why this exists: a token is opaque and holds for one list only, so it carries the name to go on after and a digest of
the filters it was made for. It is no secret: whoever makes one up sees nothing they could not list.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable

from agent.snapshots.errors import InvalidFieldError

_VERSION = b"\x01"
_DIGEST_BYTES = 8


def page_token(after: str, *filters: Iterable[int] | str) -> str:
    """Return the token of the page after a name; empty when there is none."""
    if not after:
        return ""
    return base64.urlsafe_b64encode(_VERSION + _digest(filters) + after.encode("utf-8")).decode("ascii")


def name_after(token: str, *filters: Iterable[int] | str) -> str:
    """Return the name a token goes on after; raises InvalidFieldError for one that is not ours or another list's."""
    if not token:
        return ""
    try:
        data = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        version, digest, name = data[:1], data[1 : 1 + _DIGEST_BYTES], data[1 + _DIGEST_BYTES :].decode("utf-8")
    except (UnicodeError, binascii.Error):
        raise _refused("is not one this agent gave out") from None
    if version != _VERSION or not name:
        raise _refused("is not one this agent gave out")
    if digest != _digest(filters):
        raise _refused("belongs to a list with other filters")
    return name


def _digest(filters: tuple[Iterable[int] | str, ...]) -> bytes:
    canonical = repr([one if isinstance(one, str) else sorted(set(one)) for one in filters])
    return hashlib.sha256(canonical.encode("utf-8")).digest()[:_DIGEST_BYTES]


def _refused(why: str) -> InvalidFieldError:
    return InvalidFieldError(f"page_token {why}; list again from the first page", field="page_token")
