"""The ledger of an agent that does not run, read from a copy.

Why this exists: opening a ledger finishes what a crash left in its log, and a look must change nothing. The copy is
opened as the agent would open the original: what that says is what the next start will say.
"""

import contextlib
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass

from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.ledger import LEDGER_FILE, Ledger
from agent.snapshots.ledger_rows import LedgerContents

_LOG_SUFFIX = "-wal"


@dataclass(frozen=True, slots=True)
class LedgerLook:
    """`contents` is None when there is no ledger yet or it cannot be used, which `problem` then tells."""

    path: str
    size_bytes: int = 0
    contents: LedgerContents | None = None
    is_damaged: bool = False
    problem: str = ""

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return bool(self.size_bytes or self.problem)


def look_at_ledger(state_dir: str) -> LedgerLook:
    """Read the ledger in this directory without touching it. Raises `OSError` when it may not be read."""
    path = os.path.join(state_dir, LEDGER_FILE)
    if not os.path.lexists(path):
        return LedgerLook(path)
    size = os.stat(path).st_size
    with tempfile.TemporaryDirectory(prefix="cocoon-node-doctor-") as copy:
        for suffix in ("", _LOG_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path + suffix, os.path.join(copy, LEDGER_FILE + suffix))
        with closing(Ledger(copy)) as ledger:
            try:
                contents = ledger.open()
            except LedgerUnavailableError as error:
                return LedgerLook(path, size, problem=str(error).replace(copy, state_dir))
            return LedgerLook(path, size, contents, is_damaged=ledger.set_aside_as is not None)
