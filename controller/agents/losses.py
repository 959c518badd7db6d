"""Why an attempt to keep a stream to an agent ended, in one stable word for conditions, metrics and runbooks.

Why this exists: gRPC calls nearly everything UNAVAILABLE. A host that is down, a certificate that ran out and one of
another host need different people, so they get different words; what is not recognised stays `Unavailable`.
"""

from typing import Final

import grpc
import grpc.aio

_MAX_SHOWN: Final = 300

_REASONS: Final = {
    grpc.StatusCode.UNAVAILABLE: "Unavailable",
    grpc.StatusCode.UNIMPLEMENTED: "NotAnAgent",
    grpc.StatusCode.UNAUTHENTICATED: "NotAuthorized",
    grpc.StatusCode.PERMISSION_DENIED: "NotAuthorized",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "TooManyRequests",
}
# Parts of the library's messages, of which there is no list. The longest ones first: all are failed handshakes.
_HANDSHAKES: Final = (
    ("certificate has expired", "AgentCertificateRanOut"),
    ("certificate is not yet valid", "AgentCertificateNotYetValid"),
    ("CERTIFICATE_VERIFY_FAILED", "AgentCertificateRefused"),
    ("Hostname Verification Check failed", "AgentCertificateOfAnotherNode"),
    ("handshake failed", "TlsHandshakeFailed"),
)


class StreamError(Exception):
    """One attempt ended; `reason` is a stable CamelCase word, `refused` that trying soon again is pointless."""

    def __init__(self, reason: str, message: str, *, refused: bool = False) -> None:
        """Keep the reason beside the text."""
        super().__init__(message[:_MAX_SHOWN])
        self.reason = reason
        self.refused = refused


def stream_error(code: grpc.StatusCode, details: str | None, own_problem: str = "") -> StreamError:
    """Return what a status that a stream ended with means; `own_problem` is what our own certificate suffers from."""
    reason, message = _REASONS.get(code, "StreamBroken"), details or ""
    if reason != "Unavailable":
        return StreamError(reason, message)
    if own_problem:
        # An agent that refuses our certificate just hangs up, so nothing in its answer says so.
        return StreamError("OwnCertificateRanOut", f"{own_problem}: {message}")
    for part, found in _HANDSHAKES:
        if part in message:
            return StreamError(found, message)
    return StreamError(reason, message)
