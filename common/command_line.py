"""What both command lines share: options for settings and output, and ending with one sentence.

Why this exists: every command takes the same settings in the same ways. People get a sentence, never a traceback, and a
full disk behind a redirected answer is theirs to mend while anything else is a fault of ours.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

import click

from common.settings import Setting

Command = Callable[..., None]

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


class LazyGroup(click.Group):
    """A group some of whose commands live in modules that are imported when one of them is asked for.

    Why: the options of every command would be made at each start, and the program that serves needs one command's.
    """

    def __init__(self, name: str | None = None, *, lazy: Mapping[str, str], **attributes: Any) -> None:  # noqa: ANN401 -- whatever click gives a group
        """Take, beside what a group takes, `lazy`: command names with `MODULE:ATTRIBUTE`."""
        super().__init__(name, **attributes)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None when there is none of that name."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


def settings_options(table: Sequence[Setting], *, flags: Collection[str] = ()) -> Callable[[Command], Command]:
    """Return the decorator that gives a command `--config` and an option for every setting.

    Settings whose names are in `flags` need no value: the option alone says `true`.
    """

    def decorated(command: Command) -> Command:
        for setting in reversed(table):
            text = f"{setting.help} [{setting.variable}]"
            if setting.name in flags:
                option = click.option(
                    setting.option, setting.name, is_flag=True, flag_value="true", default=None, help=text
                )
            else:
                option = click.option(setting.option, setting.name, metavar="VALUE", help=text)
            command = option(command)
        return click.option("--config", "config_file", metavar="FILE", help="Settings file: NAME=value lines.")(command)

    return decorated


def output_option(command: Command) -> Command:
    """Give a command `-o`."""
    outputs = click.Choice(("table", "json", "yaml"))
    return click.option("-o", "--output", type=outputs, default="table", show_default=True, help="Form of the answer.")(
        command
    )


def fail(message: str, status: int) -> NoReturn:
    """Print each line of the message as an error and end with this status."""
    from common.logging import printable

    for line in message.split("\n"):
        click.echo(f"error: {printable(line)}", err=True)
    sys.exit(status)


def unhandled_error(error: Exception) -> str:
    """Return the sentence for people.

    A command reads nothing and writes nothing but its answer without naming the file, so an error of the operating
    system without a file is one of standard output.
    """
    if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS:
        return f"the answer cannot be written to standard output: {os.strerror(error.errno)}"
    return f"internal error, please report it: {type(error).__name__}: {error}"
