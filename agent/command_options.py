"""What all commands share: options for the settings, loading them, and ending with one sentence.

Why this exists: every command takes the same settings in the same ways, and none ends in a traceback.
"""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import click

from agent.config import SETTINGS, Settings
from agent.config_sources import Loaded, load

OUTPUTS = ("table", "json", "yaml")
Command = Callable[..., None]


def settings_options(command: Command) -> Command:
    """Give a command an option for every setting, and `--config`."""
    for setting in reversed(SETTINGS):
        text = f"{setting.help} [{setting.variable}]"
        command = click.option(setting.option, setting.name, metavar="VALUE", help=text)(command)
    return click.option("--config", "config_file", metavar="FILE", help="Settings file: NAME=value lines.")(command)


def output_option(command: Command) -> Command:
    """Give a command `-o`."""
    return click.option(
        "-o", "--output", type=click.Choice(OUTPUTS), default="table", show_default=True, help="Form of the answer."
    )(command)


def load_settings(config_file: str | None, options: dict[str, str | None]) -> Loaded:
    """Return the settings and where each came from."""
    return load(options, os.environ, config_file)


def settings_or_exit(loaded: Loaded) -> Settings:
    """Return the settings, or end with status 2 and every problem."""
    if loaded.settings is None:
        fail("\n".join(loaded.problems), 2)
    return loaded.settings


def tell_warnings(loaded: Loaded) -> None:
    """Print what is odd about the settings."""
    from common.logging import printable

    for warning in loaded.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)


def fail(message: str, status: int) -> NoReturn:
    """Print the message and end with this status."""
    from common.logging import printable

    for line in message.split("\n"):
        click.echo(f"error: {printable(line)}", err=True)
    sys.exit(status)
