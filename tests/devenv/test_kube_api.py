"""What is no kubeconfig ends as one line that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from devenv.errors import DevenvError
from devenv.kube_api import KubeApi

_SHAPE = "apiVersion: v1\nkind: Config\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"just text",
        b"a: b: c\n",
        b"\xff\xfe",
        b"- a\n",
        _SHAPE.encode(),
        (_SHAPE + "current-context: c\ncontexts: [{name: c}]\nclusters: []\nusers: []\n").encode(),
        (
            _SHAPE
            + "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u}]\n"
            + "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: /no/file}}]\n"
        ).encode(),
    ],
)
def test_a_broken_kubeconfig_is_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(DevenvError, match=str(file)) as caught:
        KubeApi.from_kubeconfig(file)
    assert "\n" not in str(caught.value)
