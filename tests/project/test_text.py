"""No address of a foreign host and no path of somebody's machine is part of the tree."""

from __future__ import annotations

import os
import re
from pathlib import Path

from devenv.toolchain import REPOSITORY
from tests.project.source_tree import texts

_ADDRESS = re.compile(r"\bhttps?://([A-Za-z0-9.-]+)")

# Addresses that lead nowhere outside a machine or a cluster, and names reserved for examples.
_LOCAL = re.compile(
    r"^([a-z0-9-]+|127\.0\.0\.\d+|0\.0\.0\.0|[a-z0-9.-]+\.svc|[a-z0-9.-]*\.(example|invalid|test)|example\.(com|org))$"
)
# Identifiers that only look like addresses.
_IDENTIFIERS = {"json-schema.org", "www.apache.org", "www.w3.org"}
_SKIPPED = {"LICENSE"}


def test_no_foreign_address_is_named() -> None:
    found = []
    for path, text in texts().items():
        if path.name in _SKIPPED:
            continue
        for match in _ADDRESS.finditer(text):
            host = match[1].rstrip(".").lower()
            if host not in _IDENTIFIERS and not _LOCAL.match(host):
                found.append(f"{path}:{text.count(chr(10), 0, match.start()) + 1} {match[0]}")
    assert found == []


def test_no_path_of_this_machine_is_named() -> None:
    home = os.path.expanduser("~")
    paths = {str(REPOSITORY), str(REPOSITORY.parent)} | ({home} if home.count("/") > 1 else set())
    suspects = {path for path in paths if Path(path).parent != Path(path)}
    found = [
        f"{file}: {suspect}"
        for file, text in texts().items()
        for suspect in suspects
        if re.search(rf"(?<![\w/.]){re.escape(suspect)}/", text)
    ]
    assert found == []
