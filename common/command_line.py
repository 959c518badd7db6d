"""What both command lines say of an error that no command handled.

Why this exists: people get a sentence, never a traceback, and a full disk behind a redirected answer is theirs to mend
while anything else is a fault of ours.
"""

import errno
import os

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def unhandled_error(error: Exception) -> str:
    """Return the sentence for people.

    A command reads nothing and writes nothing but its answer without naming the file, so an error of the operating
    system without a file is one of standard output.
    """
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        return f"the answer cannot be written to standard output: {os.strerror(error.errno)}"
    return f"internal error, please report it: {type(error).__name__}: {error}"
