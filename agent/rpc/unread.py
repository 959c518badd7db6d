"""Answers that were given up because their callers did not read them.

Why this exists: nothing takes such an answer back from the library but the end of its connection, and a caller that
keeps the connection open keeps the memory. So each caller may have a few of them, and gets nothing more before it has
read those.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import grpc

from agent.rpc.errors import ApiError

MOST_UNREAD = 8
_REASON = "ANSWER_NOT_READ"


class UnreadAnswers:
    """How many answers each caller has left unread."""

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Return when the caller may have another answer; raises `ApiError`."""
        if self._held[caller] >= MOST_UNREAD:
            raise ApiError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "TOO_MANY_REQUESTS",
                f"{self._held[caller]} answers to you are still not read; read them or close their connections",
                metadata={"limit": str(MOST_UNREAD)},
            )

    @contextlib.contextmanager
    def holding(self, error: BaseException, caller: str) -> Iterator[None]:
        """Count the answer, if this error says that it was not read, until the block is left."""
        if not isinstance(error, ApiError) or error.reason != _REASON:
            yield
            return
        self._held[caller] += 1
        try:
            yield
        finally:
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]


def answer_not_read() -> ApiError:
    """Return the error for an answer that its caller did not take."""
    message = "nothing of the answer was read for too long"
    return ApiError(grpc.StatusCode.DEADLINE_EXCEEDED, _REASON, message)
