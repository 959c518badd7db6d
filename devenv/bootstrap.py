"""Makes `.venv` what the lock says, before anything that needs it runs. Standard library only.

The environment is brought up to date in place, under a lock, and stamped with the hash of what decides its content, so
that a second call costs milliseconds and two calls at once do not disturb each other.
"""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devenv.errors import DevenvError
from devenv.progress import say, step
from devenv.toolchain import REPOSITORY, exclusive

ENVIRONMENT = REPOSITORY / ".venv"
LOCK = REPOSITORY / "requirements" / "dev.txt"
STAMP = ENVIRONMENT / "cocoon-node-lock.sha256"


def main() -> int:
    """Bring `.venv` up to date; returns the exit status, after one line about what is missing."""
    try:
        ensure_environment()
    except DevenvError as error:
        say(f"run: {error}")
        return 1
    except KeyboardInterrupt:
        say("run: interrupted; the next call starts over")
        return 130
    return 0


def ensure_environment() -> None:
    """Create or update `.venv`; does nothing when its stamp matches the lock, the project file and the Python."""
    wanted = _wanted_stamp()
    if _stamp() == wanted:
        return
    with exclusive(REPOSITORY / ".run" / "environment.lock", "preparing .venv"):
        if _stamp() == wanted:
            return
        STAMP.unlink(missing_ok=True)
        if not _usable():
            with step("creating .venv"):
                _create()
        python = ENVIRONMENT / "bin" / "python"
        with step(f"installing {_count_packages()} locked packages"):
            _run([python, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", LOCK], "installing the packages")
            editable: list[str | Path] = ["--no-deps", "--no-build-isolation", "--editable", REPOSITORY]
            _run([python, "-m", "pip", "install", "--quiet", *editable], "installing the project")
        STAMP.write_text(wanted)


def _wanted_stamp() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for file in (LOCK, REPOSITORY / "pyproject.toml"):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _stamp() -> str:
    return STAMP.read_text() if STAMP.exists() else ""


def _usable() -> bool:
    """Whether `.venv` has a working pip under the very Python that runs now."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        return False
    answer = subprocess.run(
        [python, "-c", "import pip, sys; print(sys.version)"], capture_output=True, text=True, check=False
    )
    return answer.returncode == 0 and answer.stdout.strip() == sys.version.strip()


def _create() -> None:
    if importlib.util.find_spec("ensurepip") is not None:
        _run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], "creating .venv")
    elif importlib.util.find_spec("virtualenv") is not None:
        _run([sys.executable, "-m", "virtualenv", "--clear", ENVIRONMENT], "creating .venv")
    else:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise DevenvError(
            f"{sys.executable} cannot make virtual environments; install its venv package "
            f"(Debian: python{version}-venv) or virtualenv"
        )


def _count_packages() -> int:
    return sum("==" in line for line in LOCK.read_text().splitlines())


def _run(command: Sequence[str | Path], what: str) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines() or ["no output"]
        raise DevenvError(f"{what} failed: {lines[-1]}")


if __name__ == "__main__":
    sys.exit(main())
