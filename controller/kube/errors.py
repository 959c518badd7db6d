"""What the Kubernetes API can answer instead of what was asked for, one class per way of reacting to it."""

from typing import ClassVar

import msgspec


class _Details(msgspec.Struct):
    name: str = ""
    retryAfterSeconds: int = 0  # noqa: N815 - spelled as in the API


class Status(msgspec.Struct):
    """A `Status` object of the API, in an error body or in an ERROR event of a watch."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class KubeError(Exception):
    """A request to the Kubernetes API that did not do what was asked.

    `reason` is stable: the API's own (`NotFound`, `Conflict`, …) or, when no answer came, `ApiUnavailable` or
    `Timeout`. `status_code` is 0 when no answer came. `object_name` is the object the API names, empty when it names
    none: a 404 without it says that the path is not served, not that an object is gone.
    """

    default_reason: ClassVar[str] = "Unknown"

    def __init__(self, message: str, *, reason: str = "", status_code: int = 0, request: str = "") -> None:
        """Keep what the API said; `request` is method and path, for people."""
        super().__init__(f"{request}: {message}" if request else message)
        self.reason = reason or self.default_reason
        self.status_code = status_code
        self.request = request
        self.object_name = ""


class AccessConfigError(KubeError):
    """It is not known how to reach the API: no or a broken kubeconfig, not in a cluster."""

    default_reason = "AccessConfig"


class InvalidRequest(KubeError):  # noqa: N818 - named after the answer
    """The API refuses the object itself (400, 413, 422); repeating it cannot help."""

    default_reason = "Invalid"


class Unauthorized(KubeError):  # noqa: N818 - named after the answer
    """Our credentials are not accepted (401)."""

    default_reason = "Unauthorized"


class Forbidden(KubeError):  # noqa: N818 - named after the answer
    """We may not do that (403), by RBAC or by an admission rule."""

    default_reason = "Forbidden"


class NotFound(KubeError):  # noqa: N818 - named after the answer
    """The object or its kind does not exist (404)."""

    default_reason = "NotFound"


class Conflict(KubeError):  # noqa: N818 - named after the answer
    """The object changed since it was read, or a field belongs to another manager (409)."""

    default_reason = "Conflict"


class AlreadyExists(KubeError):  # noqa: N818 - named after the answer
    """An object of that name is already there (409 with reason AlreadyExists)."""

    default_reason = "AlreadyExists"


class Gone(KubeError):  # noqa: N818 - named after the answer
    """The resource version is too old (410): list again."""

    default_reason = "Expired"


class RetryLater(KubeError):  # noqa: N818 - named after the answer
    """The same request may work later. `retry_after_seconds` is what the server asked for, 0 when it did not say."""

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        status_code: int = 0,
        request: str = "",
        retry_after_seconds: float = 0.0,
    ) -> None:
        """As KubeError, with the server's own wish for a pause."""
        super().__init__(message, reason=reason, status_code=status_code, request=request)
        self.retry_after_seconds = retry_after_seconds


class TooManyRequests(RetryLater):
    """The API protects itself (429); the request was not carried out."""

    default_reason = "TooManyRequests"


class ServerError(RetryLater):
    """The API failed (5xx); whether the request was carried out is not known."""

    default_reason = "InternalError"


class ApiUnavailable(RetryLater):
    """No answer: no connection, a closed connection, a time limit; whether it was carried out is not known."""

    default_reason = "ApiUnavailable"


_BY_CODE: dict[int, type[KubeError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
}


def parse_status(body: bytes) -> Status | None:
    """The `Status` object in a body, or None when the body is something else (a proxy's page, half an answer)."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _retry_after(header: str | None, status: Status | None) -> float:
    """Seconds the server asked to wait, from the header (a number; dates are not used by the API) or the details."""
    try:
        seconds = float(header) if header else 0.0
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        seconds = float(status.details.retryAfterSeconds) if status and status.details else 0.0
    return max(seconds, 0.0)


def error_from_answer(code: int, body: bytes, *, request: str, retry_after: str | None = None) -> KubeError:
    """The error that an answer with this status code means."""
    status = parse_status(body)
    error = _error(code, status, body, request=request, retry_after=retry_after)
    if status is not None and status.details is not None:
        error.object_name = status.details.name
    return error


def _error(code: int, status: Status | None, body: bytes, *, request: str, retry_after: str | None) -> KubeError:
    reason = status.reason if status else ""
    text = status.message if status and status.message else body[:200].decode("utf-8", "replace")
    message = f"{text.strip() or 'no message'} (HTTP {code})"
    if code == 409 and reason == "AlreadyExists":
        return AlreadyExists(message, reason=reason, status_code=code, request=request)
    if code == 429 or code >= 500:
        kind = TooManyRequests if code == 429 else ServerError
        wait = _retry_after(retry_after, status)
        return kind(message, reason=reason, status_code=code, request=request, retry_after_seconds=wait)
    return _BY_CODE.get(code, KubeError)(message, reason=reason, status_code=code, request=request)
