"""The ledger: what the agent has promised and learned about snapshots, durable before anybody is told.

Why this exists: a retention that was acknowledged must survive `kill -9` and power loss at any instant. It is one
SQLite file in write-ahead mode with `synchronous=FULL`, written by one thread in transactions that are whole or not at
all. A damaged file is set aside, never repaired by guesses; the cache then treats everything as in use until owners
are synced. The records do not grow with use: what is gone is kept only so far that a snapshot that comes back finds its
promises again.
"""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.ledger_rows import (
    LedgerChange,
    LedgerContents,
    advice,
    error_name,
    is_damage,
    read_contents,
    transaction,
    write_change,
)
from agent.snapshots.ledger_schema import MIGRATIONS
from agent.snapshots.stores.ballast import Ballast
from agent.snapshots.stores.durable import sync_directory

LEDGER_FILE = "ledger.sqlite"
BALLAST_FILE = "ledger.ballast"
BALLAST_BYTES = 256 * 1024
_WAL_PAGES = 128
_WAL_LIMIT_BYTES = 1024 * 1024


class DamagedLedgerError(Exception):
    """The file is no ledger any more; the message tells why."""


class Ledger:
    """An open ledger. Every method blocks and raises LedgerUnavailableError; one thread calls them."""

    def __init__(self, directory: str, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> None:
        """Take the directory the ledger lives in; nothing is opened yet."""
        self._directory = directory
        self._migrations = migrations
        self._connection: sqlite3.Connection | None = None
        self._opened_file: tuple[int, int] | None = None
        self._waits_for_disk = True
        self.path = os.path.join(directory, LEDGER_FILE)
        self._ballast = Ballast(os.path.join(directory, BALLAST_FILE), size_bytes=BALLAST_BYTES)
        self.set_aside_as: str | None = None

    def open(self) -> LedgerContents:
        """Open or create the ledger, bring it to the current schema, check it, and return what is in it.

        A damaged one is set aside as `ledger.sqlite.damaged` and a new one, in which everything counts as in use, is
        begun; `set_aside_as` then tells where the old one is. A ledger of a newer program is refused.
        """
        self._opened_file = None
        with self._typed_errors("opened"):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            try:
                contents = self._open_checked()
            except DamagedLedgerError:
                self._set_aside()
                contents = self._open_checked()
                contents = replace(contents, state=replace(contents.state, everything_in_use=True))
                self._write(LedgerChange(state=contents.state))
            self._ballast.ensure()
            return contents

    def commit(self, change: LedgerChange, *, urgent: bool = False) -> None:
        """Write one change, whole and durable, or raise with nothing written.

        An urgent one comes before a removal that gives space back: it proves that records can be kept and gives up the
        ballast when the disk is full. It survives the end of the process but is not waited for on the disk: it holds
        only what would be observed again, and the removal's own record is durable.
        """
        with self._typed_errors("written"):
            try:
                self._write(change, is_durable=not urgent)
            except sqlite3.OperationalError as error:
                if not urgent or error_name(error) != "SQLITE_FULL" or not self._ballast.give_up():
                    raise
                self._write(change, is_durable=False)

    def maintain(self) -> None:
        """Give back space in the file and restore the ballast once there is room; for quiet moments."""
        with self._typed_errors("maintained"):
            self._connected().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._ballast.ensure()

    def size_bytes(self) -> int:
        """Return the space of all the ledger's files, in bytes; 0 when they cannot be looked at."""
        total = 0
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith("ledger."):
                    total += entry.stat(follow_symlinks=False).st_size
        return total

    def close(self) -> None:
        """Close the file; may be repeated."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _open_checked(self) -> LedgerContents:
        try:
            connection = self._connected()
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            if version > len(self._migrations):
                self.close()
                raise LedgerUnavailableError(
                    f"the ledger {self.path} has schema version {version}, this program knows {len(self._migrations)}:"
                    " it was written by a newer release; start that one, or move the file away to begin anew"
                )
            problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if problem != "ok":
                raise DamagedLedgerError(str(problem))
            self._migrate(connection, version)
            return read_contents(connection)
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                raise DamagedLedgerError(str(error)) from error
            raise
        except ValueError as error:
            raise DamagedLedgerError(str(error)) from error

    def _migrate(self, connection: sqlite3.Connection, version: int) -> None:
        for number in range(version, len(self._migrations)):
            try:
                with transaction(connection):
                    for statement in self._migrations[number]:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {number + 1}")
            except sqlite3.OperationalError as error:
                self.close()
                raise LedgerUnavailableError(
                    f"the ledger {self.path} could not be brought from schema version {number} to {number + 1}"
                    f" ({error}); it is as it was. {advice(error)}",
                    metadata={"cause": error_name(error)},
                ) from error
        if version != len(self._migrations):
            sync_directory(self._directory)

    def _write(self, change: LedgerChange, *, is_durable: bool = True) -> None:
        connection = self._connected()
        if is_durable is not self._waits_for_disk:
            # Of many removals in a row only the first changes it, and the promise after them changes it back.
            connection.execute("PRAGMA synchronous = FULL" if is_durable else "PRAGMA synchronous = NORMAL")
            self._waits_for_disk = is_durable
        with transaction(connection):
            write_change(connection, change)
        self._require_its_files()

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._opened_file is not None and self._file_at_path() != self._opened_file:
                raise self._replaced()
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                # Exclusive: no second program may write, and there is no shared-memory file to grow or to lose.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
                connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
                connection.execute("PRAGMA trusted_schema = OFF")
            except sqlite3.Error:
                connection.close()
                raise
            self._connection, self._waits_for_disk = connection, True
            self._opened_file = self._file_at_path()
            sync_directory(self._directory)
        return self._connection

    def _require_its_files(self) -> None:
        """Raise unless what was written will be found by the next start: a file that was deleted takes it along."""
        if self._file_at_path() != self._opened_file or not os.path.exists(self.path + "-wal"):
            self.close()
            raise self._replaced()

    def _file_at_path(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _replaced(self) -> LedgerUnavailableError:
        return LedgerUnavailableError(
            f"the ledger {self.path} is not the file this agent opened: it was moved, deleted or replaced; nothing can"
            " be promised. Put it back, or restart the agent to begin with what is there",
            metadata={"cause": "REPLACED"},
        )

    def _set_aside(self) -> None:
        self.close()
        self._opened_file = None
        self.set_aside_as = self.path + ".damaged"
        for suffix in ("", "-wal"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path + suffix, self.set_aside_as + suffix)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path + "-shm")
        sync_directory(self._directory)

    @contextlib.contextmanager
    def _typed_errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            # The next call opens the file again: after an I/O error nothing about the connection is certain.
            self.close()
            cause = error_name(error)
            raise LedgerUnavailableError(
                f"the ledger {self.path} could not be {verb} ({error}); nothing was changed. {advice(error)}",
                metadata={"cause": cause},
            ) from error
