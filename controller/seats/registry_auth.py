"""How we log in to a registry: basic, or a token of the service that its challenge names.

Why this exists: each repository needs a token of its own, which is good for a minute or an hour. Tokens are kept until
shortly before they run out, so that a poll costs one request and not three. A login goes to the registry and to the
token service that the registry names over https, to nobody else.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from controller.seats.registry_address import Origin, origin_of
from controller.seats.registry_challenge import Challenge, parse_challenges
from controller.seats.registry_http import Answer, RegistryHttp, RegistryUnavailable, Request
from controller.seats.registry_login import Login

_CLIENT = "cocoon-node"
_MOST_TOKENS = 4096
_LARGEST_TOKEN_ANSWER = 256 * 1024
_DEFAULT_SECONDS, _LONGEST_SECONDS = 60.0, 3600.0
# A token must still be good when it arrives.
_MARGIN_SECONDS = 10.0


class _TokenAnswer(msgspec.Struct):
    token: str | None = None
    access_token: str | None = None
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class _Token:
    value: str = field(repr=False)
    ends_at: float
    login: Login


class RegistryAuth:
    """The Authorization headers for one registry. `known` before a request, `answer` after a 401."""

    def __init__(self, http: RegistryHttp, origin: Origin, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self._http = http
        self._origin = origin
        self._clock = clock
        self._takes_basic = False
        self._tokens: OrderedDict[tuple[str, str], _Token] = OrderedDict()

    def known(self, repository: str, actions: str, login: Login) -> str:
        """Return the header that is expected to do for a repository; empty when none is known."""
        if login.registry_token:
            return f"Bearer {login.registry_token}"
        token = self._tokens.get((repository, actions))
        # Whoever we are now is not who we were when the file said something else.
        if token is not None and token.ends_at > self._clock() and token.login == login:
            self._tokens.move_to_end((repository, actions))
            return f"Bearer {token.value}"
        return login.basic if self._takes_basic else ""

    async def answer(self, headers: Iterable[str], repository: str, actions: str, login: Login, shown: str) -> str:
        """Return the header for the challenges of a 401. `shown` is what was sent and not accepted.

        Raises `RegistryUnavailable` when there is nothing left to try.
        """
        challenges = parse_challenges(headers)
        bearer = next((each for each in challenges if each.scheme == "bearer"), None)
        if bearer is not None and not login.registry_token:
            value = await self._fetch(bearer, repository, actions, login)
            if f"Bearer {value}" != shown:
                return f"Bearer {value}"
        if login.basic and login.basic != shown and any(each.scheme == "basic" for each in challenges):
            self._takes_basic = True
            return login.basic
        raise refused(login)

    async def _fetch(self, challenge: Challenge, repository: str, actions: str, login: Login) -> str:
        """Ask the token service, keep the token, return it."""
        request = self._token_request(challenge, repository, actions, login)
        answer = await self._http.send(request)
        if answer.status != 200:
            whose = "our login" if not login.is_anonymous else "anonymous users"
            raise RegistryUnavailable(f"its token service answers {whose} with HTTP {answer.status}")
        value, seconds = _read_token(answer)
        ends_at = self._clock() + min(seconds, _LONGEST_SECONDS) - _MARGIN_SECONDS
        self._tokens[repository, actions] = _Token(value, ends_at, login)
        self._tokens.move_to_end((repository, actions))
        if len(self._tokens) > _MOST_TOKENS:
            self._tokens.popitem(last=False)
        return value

    def _token_request(self, challenge: Challenge, repository: str, actions: str, login: Login) -> Request:
        realm = challenge.parameters.get("realm", "")
        origin = origin_of(realm)
        if origin is None or (origin != self._origin and not origin.keeps_secrets):
            raise RegistryUnavailable("its token service cannot be used: no https address")
        wanted = {"scope": challenge.parameters.get("scope") or f"repository:{repository}:{actions}"}
        if service := challenge.parameters.get("service"):
            wanted["service"] = service
        if login.identity_token:
            form = wanted | {
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": _CLIENT,
            }
            return Request("POST", realm, form=form, largest_bytes=_LARGEST_TOKEN_ANSWER)
        parts = urlsplit(realm)
        query = urlencode([*parse_qsl(parts.query), *sorted(wanted.items())])
        url = urlunsplit((parts.scheme, parts.netloc, parts.path, query, ""))
        return Request("GET", url, authorization=login.basic, largest_bytes=_LARGEST_TOKEN_ANSWER)


def refused(login: Login) -> RegistryUnavailable:
    """Return the error that says whose request was not accepted."""
    if login.is_anonymous:
        return RegistryUnavailable("HTTP 401: it wants a login and none is configured")
    return RegistryUnavailable("HTTP 401: it does not accept our login")


def _read_token(answer: Answer) -> tuple[str, float]:
    try:
        found = msgspec.json.decode(answer.body, type=_TokenAnswer) if answer.is_whole else _TokenAnswer()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = _TokenAnswer()
    value = found.token or found.access_token or ""
    if not value or not value.isascii() or not value.isprintable():
        raise RegistryUnavailable("its token service sends no token")
    return value, found.expires_in if found.expires_in is not None and found.expires_in > 0 else _DEFAULT_SECONDS
