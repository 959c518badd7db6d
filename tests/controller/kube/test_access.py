"""Ways into a cluster: exactly the one that was named, or an error that says what to pass."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.access import load_access
from controller.kube.errors import AccessConfigError

CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u"}},
        {"name": "two", "context": {"cluster": "d", "user": "u"}},
    ],
    "clusters": [
        {"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}},
        {"name": "d", "cluster": {"server": "http://127.0.0.1:2"}},
    ],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


@pytest.fixture(autouse=True)
def outside_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def write(tmp_path: Path, content: object) -> str:
    file = tmp_path / "kubeconfig"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(file)


async def test_the_named_file_and_context_are_used(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIG)
    access = await load_access(kubeconfig=file)
    assert (access.base_url, await access.authorization(), access.source) == ("http://127.0.0.1:1", "Bearer t", file)
    assert (await load_access(kubeconfig=file, context="two")).base_url == "http://127.0.0.1:2"


async def test_nothing_is_picked_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", write(tmp_path, CONFIG))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessConfigError, match="--kubeconfig FILE"):
        await load_access()


async def test_two_sources_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AccessConfigError, match="both"):
        await load_access(kubeconfig=write(tmp_path, CONFIG), in_cluster=True)


async def test_in_cluster_outside_a_pod_is_said() -> None:
    with pytest.raises(AccessConfigError, match="in-cluster"):
        await load_access(in_cluster=True)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "just text",
        "a: [",
        "- a\n- b\n",
        {"kind": "Config"},
        {**CONFIG, "current-context": "none"},
        {**CONFIG, "clusters": []},
        {**CONFIG, "contexts": None},
        {
            **CONFIG,
            "clusters": [{"name": "c", "cluster": {"server": "https://h", "certificate-authority": "/no/file"}}],
        },
    ],
)
async def test_a_broken_file_is_an_error_that_names_it(tmp_path: Path, content: object) -> None:
    file = write(tmp_path, content)
    with pytest.raises(AccessConfigError, match=file):
        await load_access(kubeconfig=file)


async def test_a_file_that_is_not_yaml_is_named_with_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, "a: 1\nb: c: d\n")
    with pytest.raises(AccessConfigError) as caught:
        await load_access(kubeconfig=file)
    assert str(caught.value) == f"{file} cannot be used: it is not YAML: mapping values are not allowed here, line 2"


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessConfigError, match="nowhere"):
        await load_access(kubeconfig=str(tmp_path / "nowhere"))


async def test_a_broken_authority_is_an_error_not_a_crash(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("no certificate")
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(authority)}
    access = await load_access(kubeconfig=write(tmp_path, {**CONFIG, "clusters": [{"name": "c", "cluster": cluster}]}))
    with pytest.raises(AccessConfigError, match="certificates"):
        access.ssl_context()


async def test_the_environments_proxy_is_used_unless_it_exempts_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = await load_access(kubeconfig=write(tmp_path, CONFIG))
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    assert access.proxy == "http://proxy:3128"
    assert access.ssl_context() is None
    monkeypatch.setenv("http_proxy", "https://proxy:3128")
    assert (context := access.ssl_context()) is not None
    assert context.cert_store_stats()["x509"]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert access.proxy is None
