"""How both programs start and end: what stops them, what they tell whoever waits for them, what a failed start says.

Why this exists: an operator and a script meet two programs of one project, which must not differ in how they are
stopped, watched and told apart from ones that could not start.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator, Mapping

from common.addresses import join_address
from common.http_listener import HttpListener


class StartError(Exception):
    """The program cannot start; `str()` says what is wrong and what to do. `status` is the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        """Keep the exit status beside the text."""
        super().__init__(message)
        self.status = status


def stop_signal() -> asyncio.Event:
    """Return an event of the running loop that SIGTERM and SIGINT set from now on."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def start_http(listener: HttpListener, where: tuple[str, int] | None, variable: str) -> str:
    """Listen at `where`, which the setting `variable` says; return the bound address, empty when it is off.

    Raises `StartError`.
    """
    if where is None:
        return ""
    try:
        return await listener.start(*where)
    except OSError as error:
        raise StartError(
            f'{variable}="{join_address(*where)}": {os.strerror(error.errno or 0)}; choose another address, or off'
        ) from None


@contextlib.contextmanager
def no_stale_ready_file(path: str | None, variable: str) -> Iterator[None]:
    """Take the file that `write_ready_file` writes away, before and after: nobody may meet a dead program's word.

    Raises `StartError` when it cannot be taken away before.
    """
    try:
        if path is not None:
            _remove(path)
    except OSError as error:
        raise StartError(f'{variable}="{path}": {os.strerror(error.errno or 0)}') from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path is not None:
                _remove(path)


def write_ready_file(path: str | None, content: Mapping[str, object], variable: str) -> None:
    """Write `content` as JSON to the file that the setting `variable` names, if it names one.

    It is written in one step, so that a reader sees all of it or none. Raises `StartError`.
    """
    if path is None:
        return
    draft = f"{path}.{os.getpid()}.new"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise StartError(f'{variable}="{path}": {os.strerror(error.errno or 0)}') from None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
