"""How long certificates still hold, in sentences that people get before the first refused handshake.

Why this exists: connections that are open go on after a certificate has run out, and nothing is amiss until the first
restart; then a whole fleet is. So both programs, the Node's condition and `doctor` warn by this one rule: two weeks
before, or in the last fifth of a certificate's life when that is less, since tools renew short ones in the last third.
"""

import time
from collections.abc import Iterable

from common.certificates import Certificate
from common.tls_files import TlsContents

_SOON_SECONDS = 14 * 86400
_LAST_PART = 5


def life_problem(contents: TlsContents, now: float) -> str:
    """Return what is close to its end at `now` (Unix seconds) or beyond it, empty when nothing is.

    The sentence stays the same until something has run out or was replaced.
    """
    for what, parts, ends_at in (
        ("the certificate, or an authority it hangs on,", contents.path, contents.certificate_ends_at),
        ("the last authority of the other side", (contents.last_authority,), contents.authorities_end_at),
    ):
        if _is_close(parts, now):
            return f"{what} {'ran out' if ends_at <= now else 'runs out'} at {utc(ends_at)}"
    return ""


def has_run_out(contents: TlsContents, now: float) -> bool:
    """Whether nobody can connect any more with these files."""
    return min(contents.certificate_ends_at, contents.authorities_end_at) <= now


def utc(seconds: float) -> str:
    """Return a time as people and programs read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _is_close(certificates: Iterable[Certificate], now: float) -> bool:
    return any(
        each.ends_at - now < min(_SOON_SECONDS, (each.ends_at - each.begins_at) / _LAST_PART) for each in certificates
    )
