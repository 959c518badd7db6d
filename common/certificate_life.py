"""How long certificates still hold, in sentences that people get weeks before the first refused handshake.

Why this exists: connections that are open go on after a certificate has run out, and nothing is amiss until the first
restart; then a whole fleet is. So both programs, the Node's condition and `doctor` warn by this one rule.
"""

import time

from common.tls_files import TlsContents

SOON_SECONDS = 14 * 86400


def life_problem(contents: TlsContents, now: float) -> str:
    """Return what runs out within two weeks of `now` (Unix seconds) or has, empty when nothing does.

    The sentence stays the same until something has run out or was replaced.
    """
    for what, ends_at in (
        ("the certificate, or an authority it hangs on,", contents.certificate_ends_at),
        ("the last authority of the other side", contents.authorities_end_at),
    ):
        if ends_at - now < SOON_SECONDS:
            return f"{what} {'ran out' if ends_at <= now else 'runs out'} at {utc(ends_at)}"
    return ""


def has_run_out(contents: TlsContents, now: float) -> bool:
    """Whether nobody can connect any more with these files."""
    return min(contents.certificate_ends_at, contents.authorities_end_at) <= now


def utc(seconds: float) -> str:
    """Return a time as people and programs read it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
