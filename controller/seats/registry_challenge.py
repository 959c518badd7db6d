"""What a registry's 401 asks for: the challenges of WWW-Authenticate headers.

Why this exists: several challenges share one header, their parameters are separated by the same commas, and quoted
values may hold anything. Whatever comes, parsing ends and never raises: what cannot be read asks for nothing.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_MAX_HEADER = 8192
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105 -- the grammar's word for a word
_SEPARATORS = re.compile(r"[ \t,]*")
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|(?=,)|$)")
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN}))(?=[ \t]*(?:,|$))')
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*(?=[ \t]*(?:,|$))")
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to log in that is offered; scheme and names of parameters in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Return the challenges of all WWW-Authenticate headers, in order, up to the first that cannot be read of each."""
    return tuple(challenge for header in headers for challenge in _parse(header[:_MAX_HEADER]))


def _parse(text: str) -> Iterable[Challenge]:
    at = _end(_SEPARATORS, text, 0)
    while at < len(text):
        scheme = _SCHEME.match(text, at)
        if scheme is None:
            return
        parameters, at = _parameters(text, scheme.end())
        yield Challenge(scheme[1].lower(), parameters)
        at = _end(_SEPARATORS, text, at)


def _parameters(text: str, at: int) -> tuple[dict[str, str], int]:
    """Return the parameters from `at` on and where they end."""
    found: dict[str, str] = {}
    blob = _TOKEN68.match(text, at)
    if blob is not None and _PARAMETER.match(text, at) is None and _SCHEME.match(text, at) is None:
        return found, blob.end()
    while (match := _PARAMETER.match(text, at)) is not None:
        name, quoted, plain = match.groups()
        found.setdefault(name.lower(), _ESCAPE.sub(r"\1", quoted) if quoted is not None else plain)
        at = match.end()
        following = _end(_SEPARATORS, text, at)
        # The next word may be another challenge's scheme; then the comma belongs to it.
        if _PARAMETER.match(text, following) is None:
            break
        at = following
    return found, at


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at
