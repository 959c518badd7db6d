"""The agent's settings as its commands take them, load them and refuse them."""

import os

import click

from agent.config import SETTINGS, Settings
from agent.config_sources import Loaded, load
from common import command_line
from common.command_line import fail

settings_options = command_line.settings_options(SETTINGS)


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
