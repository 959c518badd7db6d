"""The command line of the agent: serve, probe, explain, config.

Why this exists: it turns words into settings and errors into sentences with an exit status, and holds no logic of its
own. What a command needs is imported when that command runs, so that `serve` starts without what only `probe` prints
with.

Exit status: 0 done, 1 could not be done, 2 the settings or the command are wrong.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

from agent.config import SETTINGS, Settings
from agent.config_sources import Loaded, load
from common.settings import printable_value
from common.version import VERSION

if TYPE_CHECKING:
    from common.settings import EffectiveValue

# The library's C core writes lines of its own to standard error; our log has what they say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_OUTPUTS = ("table", "json", "yaml")
_Command = Callable[..., None]


def _settings_options(command: _Command) -> _Command:
    for setting in reversed(SETTINGS):
        text = f"{setting.help} [{setting.variable}]"
        command = click.option(setting.option, setting.name, metavar="VALUE", help=text)(command)
    return click.option("--config", "config_file", metavar="FILE", help="Settings file: NAME=value lines.")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(VERSION, message="%(version)s")
def cli() -> None:
    """Answer what this VM host has, what of it may be scheduled, and keep its VM snapshots."""


@cli.command()
@_settings_options
def serve(config_file: str | None, **options: str | None) -> None:
    """Serve the gRPC API until SIGTERM or SIGINT."""
    loaded = _load(config_file, options)
    settings = _settings_or_exit(loaded)
    import logging

    from common.logging import set_up_logging

    set_up_logging(settings.log_format, settings.log_level)
    _warn(loaded)
    import asyncio

    from agent import app

    try:
        asyncio.run(app.serve(settings))
    except app.StartError as error:
        _fail(str(error), error.status)
    except Exception:
        logging.getLogger(__name__).exception("the agent broke")
        raise


@cli.command()
@click.option(
    "-o", "--output", type=click.Choice(_OUTPUTS), default="table", show_default=True, help="Form of the answer."
)
@_settings_options
def probe(output: str, config_file: str | None, **options: str | None) -> None:
    """Read this host once and print the report that would be served."""
    loaded = _load(config_file, options)
    settings = _settings_or_exit(loaded)
    _tell_warnings(loaded)
    from agent import printing

    printing.print_report(_probe(settings), output)


@cli.command()
@click.argument("resource", required=False)
@click.option(
    "--address", metavar="HOST:PORT", help="Ask the agent that runs there (plain text) instead of reading this host."
)
@_settings_options
def explain(resource: str | None, address: str | None, config_file: str | None, **options: str | None) -> None:
    """Show how each number comes about: raw value, adjustments, reserve, allocatable, and where it was read.

    RESOURCE is a name such as cpu, memory or ephemeral-storage; all of them without it.
    """
    from agent import printing

    if address:
        from agent.ask import AskError, ask_report

        try:
            report = ask_report(address)
        except AskError as error:
            _fail(str(error), 1)
    else:
        loaded = _load(config_file, options)
        settings = _settings_or_exit(loaded)
        _tell_warnings(loaded)
        report = _probe(settings)
    known = [entry.name for entry in report.resources]
    if resource is not None and resource not in known:
        _fail(f"resource {printable_value(resource)}: must be one of {', '.join(known)}", 2)
    printing.print_explanation(report, resource)


@cli.group()
def config() -> None:
    """Show or check the settings."""


@config.command("show")
@click.option(
    "-o", "--output", type=click.Choice(_OUTPUTS), default="table", show_default=True, help="Form of the answer."
)
@_settings_options
def config_show(output: str, config_file: str | None, **options: str | None) -> None:
    """Print every effective value with its source; problems follow, with exit status 2."""
    loaded = _load(config_file, options)
    from agent import printing

    printing.print_settings([_shown_value(value) for value in loaded.values], output)
    _tell_warnings(loaded)
    _settings_or_exit(loaded)


@config.command("check")
@_settings_options
def config_check(config_file: str | None, **options: str | None) -> None:
    """Report every problem with the settings at once; exit status 2 if there is one."""
    loaded = _load(config_file, options)
    _tell_warnings(loaded)
    _settings_or_exit(loaded)
    click.echo("settings are valid")


def main() -> NoReturn:
    """Run the command line. What nobody foresaw ends as one sentence too; `serve` has logged where it happened."""
    try:
        cli(prog_name="cocoon-node-agent")
    except Exception as error:
        _fail(f"internal error, please report it: {type(error).__name__}: {error}", 1)
    sys.exit(0)


def _load(config_file: str | None, options: dict[str, str | None]) -> Loaded:
    return load(options, os.environ, config_file)


def _settings_or_exit(loaded: Loaded) -> Settings:
    if loaded.settings is None:
        _fail("\n".join(loaded.problems), 2)
    return loaded.settings


def _warn(loaded: Loaded) -> None:
    import logging

    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("unknown setting: %s", warning)


def _tell_warnings(loaded: Loaded) -> None:
    from common.logging import printable

    for warning in loaded.warnings:
        click.echo(f"warning: {printable(warning)}", err=True)


def _shown_value(value: "EffectiveValue") -> dict[str, str | None]:
    return {"variable": value.setting.variable, "value": value.text, "source": value.source}


def _probe(settings: Settings) -> "NodeResourcesReport":
    from agent import app

    if problems := app.host_problems(settings):
        _fail("\n".join(problems), 2)
    try:
        return app.probe_once(settings)
    except app.StartError as error:
        _fail(str(error), error.status)


def _fail(message: str, status: int) -> NoReturn:
    from common.logging import printable

    for line in message.split("\n"):
        click.echo(f"error: {printable(line)}", err=True)
    sys.exit(status)


if TYPE_CHECKING:
    from cocoonstack.node.v1.node_resources_pb2 import NodeResourcesReport
