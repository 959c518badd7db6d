"""Pages of the list as they were sent last, so that listing an unchanged cache again encodes nothing.

Why this exists: encoding is most of what a page costs, and a list is read far more often than a snapshot changes. Every
change of anything makes all pages stale; what is kept is bounded, whatever is asked for. Used on the event loop only.
"""

from agent.snapshots.ownership import OwnerSet

LIMIT_BYTES = 8 << 20


class EncodedPages:
    """Encoded replies by encoded request, for one revision of the cache and one set of owners."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Begin empty; replies of at most `limit_bytes` together are kept."""
        self._limit_bytes = limit_bytes
        self._kept_bytes = 0
        self._pages: dict[bytes, bytes] = {}
        self._revision = -1
        self._owners: OwnerSet | None = None

    def get(self, request: bytes, revision: int, owners: OwnerSet) -> bytes | None:
        """Return the reply to a request if nothing has changed since it was kept."""
        if revision != self._revision or owners is not self._owners:
            return None
        return self._pages.get(request)

    def keep(self, request: bytes, reply: bytes, revision: int, owners: OwnerSet) -> None:
        """Keep a reply made from this revision and these owners; older ones are dropped, too many are not kept."""
        if revision != self._revision or owners is not self._owners:
            self._pages.clear()
            self._kept_bytes = 0
            self._revision, self._owners = revision, owners
        size = len(request) + len(reply)
        if request not in self._pages and self._kept_bytes + size <= self._limit_bytes:
            self._pages[request] = reply
            self._kept_bytes += size
