"""How many files and connections this process may have open.

Why this exists: a connection is an open file. Where the limit is reached, nothing at all can be opened, neither /proc
nor the records of what was promised, and shells and supervisors start programs with a limit from other times.
"""

import resource


def raise_open_files_limit() -> int:
    """Raise the limit as far as this process may; return what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
