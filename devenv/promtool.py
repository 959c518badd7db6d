"""Finds promtool, which checks alert rules: the one on PATH, or Debian's, unpacked into our cache and not installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from devenv.toolchain import cache_directory, exclusive


def find() -> Path | None:
    """Return the program; None where there is none and Debian's packages cannot be had."""
    on_path = shutil.which("promtool")
    if on_path:
        return Path(on_path)
    folder = cache_directory() / "tools" / "promtool"
    program = folder / "usr" / "bin" / "promtool"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    with exclusive(cache_directory() / "tools" / ".lock", "fetching promtool"):
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
                if not _fetched(Path(staging)):
                    return None
                shutil.rmtree(folder, ignore_errors=True)
                (Path(staging) / "unpacked").rename(folder)
    return program


def _fetched(staging: Path) -> bool:
    """Whether Debian's package was fetched and unpacked into `staging/unpacked`."""
    # Without a list of packages, as on a new machine, this fails at once.
    command = ["apt-get", "download", "--quiet=2", "prometheus"]
    if subprocess.run(command, cwd=staging, capture_output=True, check=False).returncode != 0:
        return False
    package = next(staging.glob("prometheus_*.deb"))
    unpack: list[str | Path] = ["dpkg-deb", "--extract", package, staging / "unpacked"]
    return subprocess.run(unpack, capture_output=True, check=False).returncode == 0
