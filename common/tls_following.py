"""The newest good contents of TLS files that others replace.

Why this exists: agent and controller follow their files by one rule. A file that is broken, half written or gone keeps
the last good contents, is told once, and shows until it is mended.
"""

import logging
import threading
import time

from common.certificate_life import life_problem
from common.file_stamps import file_stamp
from common.logging import fields
from common.tls_files import TlsFiles, TlsFilesError

_LOG = logging.getLogger(__name__)
# A file written twice within one tick of the kernel's clock looks the same afterwards, so young files are read again.
_SETTLED_SECONDS = 2.0


class FollowedTlsFiles:
    """`contents` are the newest good ones, `generation` grows with each change of them.

    `problem` tells what is wrong with newer ones, empty while nothing is; `failed_reads` counts. `life_problem` tells
    what of those in use runs out soon, empty while nothing does. May be used from several threads.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files now. Raises `TlsFilesError`."""
        self.problem = ""
        self.failed_reads = 0
        self.generation = 1
        self._files = files
        self._lock = threading.Lock()
        self._seen = self._look_now()
        self.contents = files.read()
        self.life_problem = ""
        self._look_at_life()

    def look(self) -> None:
        """Read the files again if they have changed. Blocks on them; never raises."""
        with self._lock:
            self._take_new()
            self._look_at_life()

    def _take_new(self) -> None:
        try:
            seen = self._look_now()
            if seen is not None and seen == self._seen:
                return
            self._seen = None
            contents = self._files.read()
        except TlsFilesError as error:
            self._fail(str(error))
            return
        self._seen = seen
        if contents != self.contents:
            self.contents = contents
            self.generation += 1
            _LOG.info("TLS files reloaded", extra=fields(certificate=self._files.certificate))
        self.problem = ""

    def _look_now(self) -> object:
        """Return what will differ once a file was written or replaced, None while that is too soon to tell."""
        stamps = self._files.stamps()
        if time.time() - max(stamp.st_ctime for stamp in stamps) < _SETTLED_SECONDS:
            return None
        return tuple(file_stamp(stamp) for stamp in stamps)

    def _look_at_life(self) -> None:
        """Tell once that something runs out soon, and once more when it has."""
        problem = life_problem(self.contents, time.time())
        if problem and problem != self.life_problem:
            _LOG.warning("TLS files have to be replaced", extra=fields(problem=problem))
        self.life_problem = problem

    def _fail(self, problem: str) -> None:
        self._seen = None
        self.failed_reads += 1
        if self.problem != problem:
            _LOG.warning("TLS files not reloaded, the last good ones stay in use", extra=fields(problem=problem))
        self.problem = problem
