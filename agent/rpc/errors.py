"""Errors of the API: a status code, a stable reason, and whom to ask about which field.

Why this exists: clients decide by `google.rpc.ErrorInfo` and people read the message, so both are made in one place. A
use case raises its own error; its service turns it into an `ApiError`; the call guard sends that.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import grpc

from common.settings import printable_value

DOMAIN = "node.cocoonstack.io"
DETAILS_KEY = "grpc-status-details-bin"


class ApiError(Exception):
    """What a caller is told. `violations` are (field, what is wrong with it); `metadata` goes into the ErrorInfo."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.violations = tuple(violations)


def invalid_field(reason: str, field: str, value: str, rule: str) -> ApiError:
    """Return the error for a field whose value breaks a rule."""
    message = f"{field} {printable_value(value)}: {rule}"
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, reason, message, violations=[(field, rule)])


def too_many_requests(what: str, limit: int) -> ApiError:
    """Return the error for a call beyond a limit."""
    return ApiError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "TOO_MANY_REQUESTS",
        f"more than {limit} {what} at once; try again later",
        metadata={"limit": str(limit)},
    )


def details(error: ApiError) -> bytes:
    """Return the encoded `google.rpc.Status` with ErrorInfo and, if fields are at fault, BadRequest."""
    # Imported at the first error: an agent that starts has none, and these modules cost a tenth of its start.
    from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships without types

    status = status_pb2.Status(code=error.code.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    status.details.add().Pack(info)
    if error.violations:
        bad_request = error_details_pb2.BadRequest()
        for field, description in error.violations:
            bad_request.field_violations.add(field=field, description=description, reason=error.reason)
        status.details.add().Pack(bad_request)
    return bytes(status.SerializeToString())


async def abort(context: grpc.aio.ServicerContext[object, object], error: ApiError) -> NoReturn:
    """End the call with this error."""
    await context.abort(error.code, error.message, ((DETAILS_KEY, details(error)),))
    raise AssertionError("abort returned")
