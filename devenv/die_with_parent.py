"""Runs a program that must not outlive whoever started it: `die_with_parent.py PARENT_PID PROGRAM ARGUMENTS…`.

The kernel is asked to kill this process when its parent ends, however it ends; the request survives the exec. It is a
program of its own because code between fork and exec is unsafe in a process with threads. The kernel means the parent
*thread*: start long-lived programs from a thread that lives as long as they should.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent's life, then become the program."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")
    # The parent may have ended before the request reached the kernel.
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the starting process is gone")
    # SIGINT ignored by a background shell is inherited; a program told to stop must be able to hear it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 -- becoming the program is what this file is for


if __name__ == "__main__":
    main()
