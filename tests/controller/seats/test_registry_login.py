"""Logging in to a registry: what challenges ask for, which login a docker configuration has, and who gets to see it."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.seats.model import RegistryAnswer
from controller.seats.registry import Registry
from controller.seats.registry_address import RegistryConfigError, parse_registry
from controller.seats.registry_challenge import Challenge, parse_challenges
from controller.seats.registry_http import RegistryLimits
from controller.seats.registry_login import ANONYMOUS, Login, parse_docker_config
from tests.controller.seats.scripted_registry import MANIFEST_PATH, REPOSITORY, VM, ScriptedRegistry, error, reply

QUICK = RegistryLimits(attempt_seconds=2, first_delay_seconds=0.01, longest_delay_seconds=0.05)
ADDRESS = parse_registry("https://registry.example:5000/vms/prod")
SECRET = "hush-hush"


def basic(user: str = "me", password: str = SECRET) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedRegistry]:
    """A scripted registry that has the snapshot."""
    scripted = ScriptedRegistry()
    scripted.with_snapshot()
    async with scripted.serving():
        yield scripted


def docker_config(file: Path, key: str, **entry: str) -> str:
    file.write_text(json.dumps({"auths": {key.removeprefix("http://"): entry}}))
    return str(file)


# What challenges say.


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        ([""], []),
        (["Basic"], [("basic", {})]),
        (['Basic realm="a, b"'], [("basic", {"realm": "a, b"})]),
        (
            ['Bearer realm="https://t.example/token",service="s",scope="repository:a/b:pull,push"'],
            [("bearer", {"realm": "https://t.example/token", "service": "s", "scope": "repository:a/b:pull,push"})],
        ),
        (['BEARER Realm = "x" , SERVICE=y'], [("bearer", {"realm": "x", "service": "y"})]),
        (
            ['Basic realm="x", Bearer realm="y", service="z"'],
            [("basic", {"realm": "x"}), ("bearer", {"realm": "y", "service": "z"})],
        ),
        (["Negotiate, Basic realm=x"], [("negotiate", {}), ("basic", {"realm": "x"})]),
        (["Negotiate YWJj==, Basic realm=x"], [("negotiate", {}), ("basic", {"realm": "x"})]),
        (["Basic realm=x", "Bearer realm=y"], [("basic", {"realm": "x"}), ("bearer", {"realm": "y"})]),
        ([r'Basic realm="say \"x\", and \\"'], [("basic", {"realm": 'say "x", and \\'})]),
        (['Bearer realm="not closed'], [("bearer", {})]),
        (['Bearer realm="a", realm="b"'], [("bearer", {"realm": "a"})]),
        (['="x"'], []),
        (['Basic realm="x" nonsense'], [("basic", {})]),
    ],
)  # fmt: skip
def test_challenges(headers: list[str], expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(headers) == tuple(Challenge(scheme, parameters) for scheme, parameters in expected)


_WORDS = st.from_regex(r"[A-Za-z][A-Za-z0-9.-]{0,8}", fullmatch=True)
_TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
_CHALLENGES = st.tuples(_WORDS, st.dictionaries(_WORDS.map(str.lower), _TEXTS, min_size=1, max_size=4))


@given(st.lists(_CHALLENGES, max_size=4), st.sampled_from([", ", ",", " , "]))
def test_challenges_that_were_written_are_read(challenges: list[tuple[str, dict[str, str]]], comma: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = comma.join(
        f"{scheme} " + comma.join(f"{name}={quoted(value)}" for name, value in parameters.items())
        for scheme, parameters in challenges
    )
    assert parse_challenges([text]) == tuple(Challenge(scheme.lower(), parameters) for scheme, parameters in challenges)


@given(st.text(max_size=200) | st.text(st.sampled_from('Bearer realm="x",\\= \t;'), max_size=200))
def test_any_header_is_read_without_an_error(text: str) -> None:
    for challenge in parse_challenges([text]):
        assert challenge.scheme == challenge.scheme.lower() != ""


# What a docker configuration has.


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, ANONYMOUS),
        ({"auths": {}}, ANONYMOUS),
        ({"auths": None}, ANONYMOUS),
        ({"auths": {"registry.example:5000": None}}, ANONYMOUS),
        ({"auths": {"registry.example:5000": {"auth": basic()}}}, Login("me", SECRET)),
        ({"auths": {"REGISTRY.example:5000": {"auth": basic("me", "a:b:c")}}}, Login("me", "a:b:c")),
        ({"auths": {"https://registry.example:5000/v1/": {"auth": basic()}}}, Login("me", SECRET)),
        ({"auths": {"registry.example:5000": {"username": "me", "password": SECRET}}}, Login("me", SECRET)),
        ({"auths": {"registry.example": {"auth": basic()}}}, ANONYMOUS),
        ({"auths": {"registry.example:5001": {"auth": basic()}}}, ANONYMOUS),
        ({"auths": {"example:5000": {"auth": basic()}}}, ANONYMOUS),
        ({"auths": {"registry.example:5000/vms": {"auth": basic()}}}, Login("me", SECRET)),
        ({"auths": {"registry.example:5000/vm": {"auth": basic()}}}, ANONYMOUS),
        ({"auths": {"registry.example:5000/vms/prod/x": {"auth": basic()}}}, ANONYMOUS),
        (
            {"auths": {f"registry.example:5000{path}": {"auth": basic(path)} for path in ("", "/vms/prod", "/vms")}},
            Login("/vms/prod", SECRET),
        ),
        ({"auths": {"registry.example:5000": {"auth": basic() }}, "credsStore": "desktop"}, Login("me", SECRET)),
        ({"auths": {"registry.example:5000": {"identitytoken": SECRET}}}, Login(identity_token=SECRET)),
        ({"auths": {"registry.example:5000": {"auth": basic("<token>")}}}, Login(identity_token=SECRET)),
        ({"auths": {"registry.example:5000": {"registrytoken": SECRET}}}, Login(registry_token=SECRET)),
        ({"credHelpers": {"other.example": "x"}}, ANONYMOUS),
        ({"auths": {"[::1": {}, "registry.example:x": {}}, "HttpHeaders": {"X": "y"}}, ANONYMOUS),
    ],
)  # fmt: skip
def test_docker_config(content: Mapping[str, Any], expected: Login) -> None:
    assert parse_docker_config(json.dumps(content).encode(), ADDRESS) == expected


@pytest.mark.parametrize(
    ("content", "reason", "text"),
    [
        (b"", "InvalidDockerConfig", "no docker configuration"),
        (b"auths:", "InvalidDockerConfig", "not JSON"),
        (b"\xff", "InvalidDockerConfig", "no docker configuration"),
        (b"[]", "InvalidDockerConfig", "no docker configuration"),
        (b'{"auths": {"registry.example:5000": {"auth": "!"}}}', "InvalidDockerConfig", "registry.example:5000"),
        (b'{"auths": {"registry.example:5000": {"auth": "bWU="}}}', "InvalidDockerConfig", "USER:PASSWORD"),
        (b'{"auths": {"registry.example:5000": {"auth": 7}}}', "InvalidDockerConfig", "no docker configuration"),
        (b'{"credsStore": "desktop"}', "CredentialHelper", "'desktop'"),
        (b'{"auths": {"registry.example:5000": {}}, "credsStore": "desktop"}', "CredentialHelper", "never run"),
        (b'{"credHelpers": {"registry.example:5000": "cloud"}}', "CredentialHelper", "'cloud'"),
    ],
)
def test_docker_config_refused(content: bytes, reason: str, text: str) -> None:
    with pytest.raises(RegistryConfigError, match=text) as refusal:
        parse_docker_config(content, ADDRESS)
    assert refusal.value.reason == reason


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
_ENTRIES = st.dictionaries(
    st.sampled_from(["registry.example:5000", "https://registry.example:5000/v2/", "x", "//", "[", ""]),
    st.dictionaries(st.sampled_from(["auth", "username", "password", "identitytoken"]), st.text(max_size=12)) | _JSON,
)


@given(
    st.binary(max_size=60) | _JSON.map(msgspec.json.encode) | _ENTRIES.map(lambda e: msgspec.json.encode({"auths": e}))
)
def test_any_docker_config_gives_a_login_or_an_error_of_ours(content: bytes) -> None:
    reason = ""
    try:
        parse_docker_config(content, ADDRESS)
    except RegistryConfigError as error:
        reason = error.reason
    assert reason in ("", "InvalidDockerConfig", "CredentialHelper")


@given(st.text(min_size=1, max_size=20).filter(lambda text: ":" not in text), st.text(min_size=1, max_size=20))
def test_a_login_that_was_written_is_read_and_never_shown(user: str, password: str) -> None:
    password = password.rstrip("\0") or "p"
    user = "u" if user == "<token>" else user
    entry = {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}
    login = parse_docker_config(json.dumps({"auths": {"registry.example:5000": entry}}).encode(), ADDRESS)
    assert (login.user, login.password) == (user, password)
    assert repr(Login("u", "secret" + SECRET, SECRET, SECRET)).count(SECRET) == 0


# Who gets to see it.


async def test_basic_is_sent_when_asked_for_and_then_at_once(server: ScriptedRegistry, tmp_path: Path) -> None:
    found = server.replies[f"GET {MANIFEST_PATH}"][0]
    server.on_manifest(error(401, "UNAUTHORIZED", WWW_Authenticate='Basic realm="vms"'), found)
    client = Registry(server.base, docker_config_file=docker_config(tmp_path / "c.json", server.url, auth=basic()))
    for _ in range(2):
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
    assert [sent for _, _, sent in server.seen] == ["", f"Basic {basic()}", f"Basic {basic()}"]
    await client.aclose()


@pytest.mark.parametrize("user", ["me", ""])
async def test_token_is_fetched_once_kept_and_fetched_again_when_it_ends(
    server: ScriptedRegistry, tmp_path: Path, user: str
) -> None:
    now = [0.0]
    tokens = ScriptedRegistry()
    async with tokens.serving():
        found = server.replies[f"GET {MANIFEST_PATH}"][0]
        challenge = (
            f'Bearer realm="{tokens.url}/token?account=a",service="the registry",scope="repository:{REPOSITORY}:pull"'
        )
        refusal = error(401, "UNAUTHORIZED", WWW_Authenticate=challenge)
        server.on_manifest(refusal, found, found, refusal, found)
        tokens.on(
            "GET /token",
            reply(200, json.dumps({"token": "one", "expires_in": 300})),
            reply(200, json.dumps({"access_token": "two"})),
        )
        file = docker_config(tmp_path / "c.json", server.url, auth=basic()) if user else None
        client = Registry(server.base, docker_config_file=file, limits=QUICK, clock=lambda: now[0])
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
        now[0] = 289
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
        now[0] = 291
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
        await client.aclose()
    assert [sent for _, _, sent in server.seen] == ["", "Bearer one", "Bearer one", "", "Bearer two"]
    scope = REPOSITORY.replace("/", "%2F")
    asked = ("GET", f"/token?account=a&scope=repository:{REPOSITORY}:pull&service=the+registry")
    assert {(method, path.replace("%3A", ":").replace("%2F", "/")) for method, path, _ in tokens.seen} == {asked}, scope
    assert {sent for _, _, sent in tokens.seen} == {f"Basic {basic()}" if user else ""}


async def test_token_that_is_not_accepted_any_more_is_fetched_again(server: ScriptedRegistry) -> None:
    found = server.replies[f"GET {MANIFEST_PATH}"][0]
    refusal = error(401, "UNAUTHORIZED", WWW_Authenticate=f'Bearer realm="{server.url}/token"')
    server.on_manifest(refusal, found, refusal, found)
    server.on("GET /token", reply(200, '{"token": "one"}'), reply(200, '{"token": "two"}'))
    client = Registry(server.base, limits=QUICK)
    for _ in range(2):
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
    await client.aclose()
    assert [sent for _, path, sent in server.seen if path == MANIFEST_PATH] == [
        "",
        "Bearer one",
        "Bearer one",
        "Bearer two",
    ]


async def test_identity_token_is_exchanged_in_the_body(server: ScriptedRegistry, tmp_path: Path) -> None:
    found = server.replies[f"GET {MANIFEST_PATH}"][0]
    challenge = f'Bearer realm="{server.url}/token",service="s"'
    server.on_manifest(error(401, "UNAUTHORIZED", WWW_Authenticate=challenge), found)
    server.on("POST /token", reply(200, '{"access_token": "one"}'))
    file = docker_config(tmp_path / "c.json", server.url, identitytoken=SECRET)
    client = Registry(server.base, docker_config_file=file, limits=QUICK)
    assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
    await client.aclose()
    assert [(form["grant_type"], form["refresh_token"], form["service"]) for form in server.forms] == [
        ("refresh_token", SECRET, "s")
    ]
    assert not any(SECRET in path for _, path, _ in server.seen)


async def test_deleting_asks_for_the_right_to_delete(server: ScriptedRegistry) -> None:
    challenge = f'Bearer realm="{server.url}/token"'
    server.on_manifest(error(401, "UNAUTHORIZED", WWW_Authenticate=challenge), reply(202), method="DELETE")
    server.on("GET /token", reply(200, '{"token": "one"}'))
    client = Registry(server.base, limits=QUICK)
    assert (await client.delete_tag(VM)).name == "DELETED"
    await client.aclose()
    assert any("delete%2Cpull" in path for _, path, _ in server.seen)


@pytest.mark.parametrize(
    ("challenge", "token", "why"),
    [
        ("", "", "does not accept our login"),
        ("Negotiate", "", "does not accept our login"),
        ('Basic realm="x"', "", "does not accept our login"),
        ('Bearer realm=""', "", "no https address"),
        ('Bearer realm="http://elsewhere.example/token"', "", "no https address"),
        ('Bearer realm="ftp://elsewhere.example/token"', "", "no https address"),
        ('Bearer realm="OWN/token"', '{"token": ""}', "sends no token"),
        ('Bearer realm="OWN/token"', '{"token": "a\\nb"}', "sends no token"),
        ('Bearer realm="OWN/token"', "<html>", "sends no token"),
        ('Bearer realm="OWN/none"', "", "answers our login with HTTP 404"),
        ('Bearer realm="OWN/token"', '{"token": "one"}', "does not accept our login"),
    ],
)
async def test_refused_login_is_unknown_and_never_said(
    server: ScriptedRegistry, tmp_path: Path, challenge: str, token: str, why: str
) -> None:
    headers = {"WWW_Authenticate": challenge.replace("OWN", server.url)} if challenge else {}
    server.on_manifest(error(401, "UNAUTHORIZED", **headers))
    server.on("GET /token", reply(200, token))
    file = docker_config(tmp_path / "c.json", server.url, auth=basic())
    client = Registry(server.base, docker_config_file=file, limits=QUICK)
    found = await client.manifest(VM)
    await client.aclose()
    assert found.answer is RegistryAnswer.UNKNOWN
    assert why in found.why
    assert SECRET not in found.why
    assert basic() not in found.why


async def test_a_redirect_to_another_host_carries_no_login(server: ScriptedRegistry, tmp_path: Path) -> None:
    other = ScriptedRegistry()
    async with other.serving():
        found = server.replies[f"GET {MANIFEST_PATH}"][0]
        moved = reply(307, Location=f"{other.url}{MANIFEST_PATH}")
        server.on_manifest(error(401, "UNAUTHORIZED", WWW_Authenticate="Basic"), moved)
        other.on_manifest(found)
        file = docker_config(tmp_path / "c.json", server.url, auth=basic())
        client = Registry(server.base, docker_config_file=file, limits=QUICK)
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
        await client.aclose()
    assert [sent for _, _, sent in server.seen] == ["", f"Basic {basic()}"]
    assert [sent for _, _, sent in other.seen] == [""]


async def test_rotated_file_is_read_and_a_broken_one_keeps_the_last(server: ScriptedRegistry, tmp_path: Path) -> None:
    """F22: the mounted Secret changes while we run."""
    now = [0.0]
    file = tmp_path / "c.json"
    docker_config(file, server.url, auth=basic("old"))
    found = server.replies[f"GET {MANIFEST_PATH}"][0]
    server.on_manifest(error(401, "UNAUTHORIZED", WWW_Authenticate="Basic"), found)
    client = Registry(server.base, docker_config_file=str(file), limits=QUICK, clock=lambda: now[0])
    await client.manifest(VM)
    for content, user, has_problem in (("{", "old", True), (None, "new", False)):
        now[0] += 60
        fresh = tmp_path / "fresh"
        if content is None:
            docker_config(fresh, server.url, auth=basic("new"))
        else:
            fresh.write_text(content)
        os.replace(fresh, file)
        assert (await client.manifest(VM)).answer is RegistryAnswer.PRESENT
        assert server.seen[-1][2] == f"Basic {basic(user)}"
        assert bool(client.problem) is has_problem
    await client.aclose()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "DockerConfigUnreadable"), ("{", "InvalidDockerConfig"), ('{"credsStore": "x"}', "CredentialHelper")],
)
def test_file_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "c.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RegistryConfigError, match=str(file)) as refusal:
        Registry("https://registry.example/vms", docker_config_file=str(file))
    assert refusal.value.reason == reason


def test_login_is_not_sent_in_the_clear(tmp_path: Path) -> None:
    file = docker_config(tmp_path / "c.json", "registry.example", auth=basic())
    with pytest.raises(RegistryConfigError) as refusal:
        Registry("http://registry.example/vms", docker_config_file=file)
    assert refusal.value.reason == "PlainText"
