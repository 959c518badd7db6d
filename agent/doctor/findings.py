"""What one look found, and what to do about it.

Why this exists: every check says the same four things, so that people read them top down and scripts by name.
"""

import enum
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass


class Status(enum.Enum):
    """How it is. Only FAILED makes the whole a failure; SKIPPED could not be looked at and says why."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: `check` is a stable name, `message` what was found, `remedy` what to do, empty when nothing is."""

    check: str
    status: Status
    message: str
    remedy: str = ""


def ok(check: str, message: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, remedy: str) -> Finding:
    """Return a finding that will become trouble."""
    return Finding(check, Status.WARNING, message, remedy)


def failed(check: str, message: str, remedy: str) -> Finding:
    """Return a finding that is trouble."""
    return Finding(check, Status.FAILED, message, remedy)


def skipped(check: str, message: str) -> Finding:
    """Return a finding that nothing could be found, and why."""
    return Finding(check, Status.SKIPPED, message)


def guarded(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return what a look finds; what the system refuses to show becomes a finding too."""
    try:
        return list(look())
    except OSError as error:
        return [unreadable(check, error)]


def unreadable(check: str, error: OSError) -> Finding:
    """Return the finding that the system does not let us look."""
    where = f"{error.filename}: " if error.filename else ""
    told = f"{where}{os.strerror(error.errno or 0)}"
    return failed(check, told, "call it as the user the agent runs as, and look at what is named")
