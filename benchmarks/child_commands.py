"""What a child of a benchmark does until it is ended: obey the lines of its standard input."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable


async def obey_until_ended(obey: Callable[[str], object]) -> None:
    """Give each line of standard input to `obey`; return when the input ends, or at SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    unfinished = b""

    def read() -> None:
        nonlocal unfinished
        chunk = os.read(sys.stdin.fileno(), 65536)
        if not chunk:
            loop.remove_reader(sys.stdin.fileno())
            stop.set()
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            obey(line.decode())

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), read)
    await stop.wait()
