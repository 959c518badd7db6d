"""What a registry's answers mean: present, absent or unknown, and never a secret in what is said about it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from yarl import URL

from controller.seats.model import RegistryAnswer, TagDeletion
from controller.seats.registry import Registry
from controller.seats.registry_address import RegistryConfigError, parse_registry
from controller.seats.registry_http import RegistryLimits, _proxy
from tests.controller.seats.scripted_registry import (
    CONFIG,
    MANIFEST_PATH,
    REPOSITORY,
    VM,
    Reply,
    ScriptedRegistry,
    cut,
    digest,
    endless,
    error,
    hang,
    manifest,
    reply,
)

QUICK = RegistryLimits(
    total_seconds=10, connect_seconds=1, attempt_seconds=0.5, first_delay_seconds=0.01, longest_delay_seconds=0.05
)
PRESENT, ABSENT, UNKNOWN = RegistryAnswer.PRESENT, RegistryAnswer.ABSENT, RegistryAnswer.UNKNOWN
INDEX = json.dumps({"schemaVersion": 2, "artifactType": "application/vnd.cocoonstack.snapshot.v1+json"}).encode()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedRegistry]:
    """A scripted registry, serving."""
    scripted = ScriptedRegistry()
    async with scripted.serving():
        yield scripted


@pytest.fixture
async def registry(server: ScriptedRegistry) -> AsyncIterator[Registry]:
    """A client of it, impatient."""
    client = Registry(server.base, limits=QUICK)
    yield client
    await client.aclose()


@pytest.mark.parametrize(
    ("answer", "expected", "why"),
    [
        pytest.param(reply(200, manifest()), PRESENT, "", id="v1"),
        pytest.param(reply(200, manifest("application/vnd.cocoonstack.snapshot.v2+json")), PRESENT, "", id="v2"),
        pytest.param(
            reply(200, manifest(), Docker_Content_Digest=digest(manifest())), PRESENT, "", id="with its digest"
        ),
        pytest.param(
            reply(200, manifest(), Docker_Content_Digest=digest(b"")), UNKNOWN, "digest differs", id="another's digest"
        ),
        pytest.param(
            reply(200, manifest("application/vnd.cocoonstack.snapshot.v3+json")), UNKNOWN, "no VM snap", id="v3"
        ),
        pytest.param(reply(200, manifest(None)), UNKNOWN, "no VM snapshot", id="an image"),
        pytest.param(reply(200, INDEX), UNKNOWN, "no VM snapshot", id="an index"),
        pytest.param(reply(200, b""), UNKNOWN, "no manifest", id="empty"),
        pytest.param(reply(200, manifest()[:-9]), UNKNOWN, "no manifest", id="half"),
        pytest.param(reply(200, b"[]"), UNKNOWN, "no manifest", id="a list"),
        pytest.param(reply(200, "<html>log in"), UNKNOWN, "no manifest", id="a page"),
        pytest.param(reply(200, b"\xff\xfe"), UNKNOWN, "no manifest", id="no text"),
        pytest.param(endless, UNKNOWN, "too large", id="endless"),
        pytest.param(error(404, "MANIFEST_UNKNOWN"), ABSENT, "HTTP 404 MANIFEST_UNKNOWN", id="manifest unknown"),
        pytest.param(error(404, "NAME_UNKNOWN"), ABSENT, "HTTP 404 NAME_UNKNOWN", id="repository unknown"),
        pytest.param(error(404, "NOT_FOUND"), ABSENT, "HTTP 404 NOT_FOUND", id="not found"),
        pytest.param(error(404, "DENIED"), UNKNOWN, "HTTP 404 DENIED", id="404 for who may not look"),
        pytest.param(error(404), UNKNOWN, "HTTP 404", id="a proxy's page"),
        pytest.param(reply(404), UNKNOWN, "HTTP 404", id="404 without a body"),
        pytest.param(reply(404, '{"errors": []}'), UNKNOWN, "HTTP 404", id="404 without errors"),
        pytest.param(reply(404, '{"errors": [{"message": "no"}]}'), UNKNOWN, "HTTP 404", id="404 without a code"),
        pytest.param(reply(404, '{"detail": "Not Found"}'), UNKNOWN, "HTTP 404", id="another service's 404"),
        pytest.param(reply(204), UNKNOWN, "HTTP 204", id="no content"),
        pytest.param(error(400, "NAME_INVALID"), UNKNOWN, "HTTP 400 NAME_INVALID", id="bad request"),
        pytest.param(error(401, "UNAUTHORIZED"), UNKNOWN, "none is configured", id="no challenge"),
        pytest.param(error(403, "DENIED"), UNKNOWN, "HTTP 403 DENIED", id="forbidden"),
        pytest.param(error(410), UNKNOWN, "HTTP 410", id="gone"),
        pytest.param(error(429, "TOOMANYREQUESTS"), UNKNOWN, "HTTP 429 TOOMANYREQUESTS", id="too many requests"),
        pytest.param(error(500), UNKNOWN, "HTTP 500", id="broken"),
        pytest.param(error(503), UNKNOWN, "HTTP 503", id="away"),
        pytest.param(hang, UNKNOWN, "no answer within 0.5 s", id="hangs"),
        pytest.param(cut, UNKNOWN, "no answer", id="cut"),
        pytest.param(
            reply(200, manifest(), Content_Encoding="br"), UNKNOWN, "too large or packed", id="packed unasked"
        ),
    ],
)
async def test_manifest(
    server: ScriptedRegistry, registry: Registry, answer: Reply, expected: RegistryAnswer, why: str
) -> None:
    server.on_manifest(answer)
    found = await registry.manifest(VM)
    assert found.answer is expected, found.why
    assert why in found.why
    assert "hush" not in found.why
    assert (found.digest != "") == (expected is PRESENT)
    is_repeated = answer in (hang, cut) or found.why[5:8] in ("429", "500", "503")
    # The library below sends once more itself what only reads, when the connection was closed without an answer.
    most = QUICK.attempts * (2 if answer is cut else 1)
    assert QUICK.attempts <= len(server.seen) <= most if is_repeated else len(server.seen) == 1


@pytest.mark.parametrize("vm_name", ["../x", "a/b", "", "UPPER", "a b", "a?b", "-rf", "vk-a\n", "x" * 300, "a..b", "ü"])
async def test_a_name_that_is_no_repository_is_never_sent(
    server: ScriptedRegistry, registry: Registry, vm_name: str
) -> None:
    """F26: names that would lead elsewhere."""
    assert (await registry.manifest(vm_name)).answer is UNKNOWN
    assert await registry.delete_tag(vm_name) is TagDeletion.FAILED
    assert server.seen == []


async def test_nobody_listening() -> None:
    client = Registry("http://127.0.0.1:1/vms", limits=QUICK)
    found = await client.manifest(VM)
    assert found.answer is UNKNOWN
    assert "no answer" in found.why
    assert await client.delete_tag(VM) is TagDeletion.FAILED
    await client.aclose()


async def test_recovers_within_its_attempts(server: ScriptedRegistry, registry: Registry) -> None:
    """F13: 503 and a closed connection, then an answer."""
    server.on_manifest(error(503, Retry_After="0"), cut, reply(200, manifest()))
    assert (await registry.manifest(VM)).answer is PRESENT
    assert len(server.seen) == 3


async def test_a_pause_asked_for_is_kept_towards_all(server: ScriptedRegistry) -> None:
    """F13: Retry-After longer than we wait here and now: nobody is asked until then."""
    now = [100.0]
    client = Registry(server.base, limits=QUICK, clock=lambda: now[0])
    server.on_manifest(error(429, "TOOMANYREQUESTS", Retry_After="30"), reply(200, manifest()))
    assert (await client.manifest(VM)).answer is UNKNOWN
    assert "another 30 s" in (await client.manifest(VM)).why
    assert "asked to be left alone" in (await client.manifest("vk-default-other-0")).why
    assert len(server.seen) == 1
    now[0] += 30
    assert (await client.manifest(VM)).answer is PRESENT
    await client.aclose()


async def test_snapshot_id_is_read_from_the_config_blob_once(server: ScriptedRegistry, registry: Registry) -> None:
    server.with_snapshot()
    assert (await registry.manifest(VM)).snapshot_id == ""
    for _ in range(2):
        found = await registry.manifest(VM, with_snapshot_id=True)
        assert (found.answer, found.snapshot_id) == (PRESENT, "0123abcd")
    assert len([path for _, path, _ in server.seen if "/blobs/" in path]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(200, CONFIG + b" "), id="another blob"),
        pytest.param(error(404, "BLOB_UNKNOWN"), id="missing"),
        pytest.param(cut, id="cut"),
        pytest.param(endless, id="endless"),
    ],
)
async def test_present_without_its_id_when_only_the_blob_fails(
    server: ScriptedRegistry, registry: Registry, answer: Reply
) -> None:
    server.with_snapshot()
    server.on(f"GET /v2/{REPOSITORY}/blobs/{digest(CONFIG)}", answer)
    found = await registry.manifest(VM, with_snapshot_id=True)
    assert (found.answer, found.snapshot_id) == (PRESENT, "")


async def test_another_config_type_has_no_id(server: ScriptedRegistry, registry: Registry) -> None:
    server.with_snapshot()
    server.on_manifest(reply(200, manifest(config_type="application/vnd.oci.empty.v1+json")))
    found = await registry.manifest(VM, with_snapshot_id=True)
    assert (found.answer, found.snapshot_id) == (PRESENT, "")


@pytest.mark.parametrize(
    ("answer", "left", "expected"),
    [
        (reply(202), hang, TagDeletion.DELETED),
        (reply(204), hang, TagDeletion.DELETED),
        (error(404, "MANIFEST_UNKNOWN"), error(404, "MANIFEST_UNKNOWN"), TagDeletion.ABSENT),
        (error(404, "MANIFEST_UNKNOWN"), reply(200, manifest()), TagDeletion.KEPT),
        (error(404), reply(200, manifest()), TagDeletion.KEPT),
        (error(400, "UNSUPPORTED"), hang, TagDeletion.KEPT),
        (error(405, "UNSUPPORTED"), hang, TagDeletion.KEPT),
        (error(401, "UNAUTHORIZED"), hang, TagDeletion.FAILED),
        (error(403, "DENIED"), hang, TagDeletion.FAILED),
        (error(500), hang, TagDeletion.FAILED),
        (reply(307, Location="/elsewhere"), hang, TagDeletion.FAILED),
        (cut, hang, TagDeletion.FAILED),
    ],
)
async def test_delete_tag(
    server: ScriptedRegistry, registry: Registry, answer: Reply, left: Reply, expected: TagDeletion
) -> None:
    server.on_manifest(answer, method="DELETE")
    server.on_manifest(left)
    assert await registry.delete_tag(VM) is expected
    assert {(method, path) for method, path, _ in server.seen} <= {("DELETE", MANIFEST_PATH), ("GET", MANIFEST_PATH)}


async def test_blobs_may_be_redirected_manifests_of_others_are_not_absent(
    server: ScriptedRegistry, registry: Registry
) -> None:
    storage = ScriptedRegistry()
    async with storage.serving():
        server.with_snapshot()
        server.on(f"GET /v2/{REPOSITORY}/blobs/{digest(CONFIG)}", reply(307, Location=f"{storage.url}/blob"))
        storage.on("GET /blob", reply(200, CONFIG))
        assert (await registry.manifest(VM, with_snapshot_id=True)).snapshot_id == "0123abcd"
        server.on_manifest(reply(302, Location=f"{storage.url}/gone"))
        storage.on("GET /gone", error(404, "MANIFEST_UNKNOWN"))
        assert (await registry.manifest(VM)).answer is UNKNOWN
        server.on_manifest(reply(302, Location=MANIFEST_PATH))
        assert "redirects" in (await registry.manifest(VM)).why


async def test_many_at_once_and_cancelled(server: ScriptedRegistry, registry: Registry) -> None:
    server.with_snapshot()
    answers = await asyncio.gather(*(registry.manifest(VM) for _ in range(100)))
    assert {found.answer for found in answers} == {PRESENT}
    server.on_manifest(hang)
    waiting = [asyncio.create_task(registry.manifest(VM)) for _ in range(40)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    server.with_snapshot()
    assert (await registry.manifest(VM)).answer is PRESENT


def _tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def test_own_authorities_and_their_replacement(tmp_path: Path) -> None:
    """F22: authorities replaced while running; half a file keeps what is in use."""
    old, new = trustme.CA(), trustme.CA()
    file = tmp_path / "ca.pem"
    old.cert_pem.write_to_path(str(file))
    server = ScriptedRegistry()
    server.with_snapshot()
    async with server.serving(_tls(old)):
        stranger = Registry(server.base, limits=QUICK)
        assert "CERTIFICATE_VERIFY_FAILED" in (await stranger.manifest(VM)).why
        await stranger.aclose()
        client = Registry(server.base, ca_file=str(file), limits=QUICK)
        assert (await client.manifest(VM)).answer is PRESENT
    other = ScriptedRegistry()
    other.with_snapshot()
    async with other.serving(_tls(new)):
        client.address = parse_registry(other.base)
        assert "CERTIFICATE_VERIFY_FAILED" in (await client.manifest(VM)).why
        file.write_text("-----BEGIN CERTIFICATE-----\n")
        assert str(file) in (await client.manifest(VM)).why
        new.cert_pem.write_to_path(str(file))
        assert (await client.manifest(VM)).answer is PRESENT
    await client.aclose()


@pytest.mark.parametrize(
    "base",
    [
        "registry.example",
        "ftp://registry.example",
        "http://",
        "http://registry.example:0x1/",
        "http://registry.example:99999/vms",
        "https://me:hush@registry.example/vms",
        "https://registry.example/VMS",
        "https://registry.example/a//b",
        "https://registry.example/vms?x=1",
    ],
)
def test_base_refused(base: str) -> None:
    with pytest.raises(RegistryConfigError) as refusal:
        Registry(base)
    assert refusal.value.reason == "InvalidRegistry"
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://registry.example", "https://registry.example/v2/vm/manifests/hibernate"),
        ("https://registry.example:443/vms/", "https://registry.example/v2/vms/vm/manifests/hibernate"),
        ("http://REGISTRY.example:5000/a/b", "http://registry.example:5000/v2/a/b/vm/manifests/hibernate"),
        ("http://[::1]:5000", "http://[::1]:5000/v2/vm/manifests/hibernate"),
    ],
)
def test_base(base: str, url: str) -> None:
    address = parse_registry(base)
    repository = address.repository("vm")
    assert repository is not None
    assert address.manifest_url(repository) == url


def test_missing_and_broken_authorities_are_errors_that_name_the_file(tmp_path: Path) -> None:
    for content in (None, "no certificate"):
        file = tmp_path / "ca.pem"
        if content is not None:
            file.write_text(content)
        with pytest.raises(RegistryConfigError, match=str(file)):
            Registry("https://registry.example", ca_file=str(file))


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("https://registry.example/x", "http://proxy.example:3128"),
        ("http://registry.example/x", None),
        ("https://inside.example/x", None),
        ("https://127.0.0.1:5000/x", None),
        ("https://localhost/x", None),
    ],
)
def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, base: str, expected: str | None) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert _proxy(URL(base)) == expected
