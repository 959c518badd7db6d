"""The command line of the agent: serve, probe, explain, config, snapshots, accept, certs, doctor.

Why this exists: it turns words into settings and errors into sentences with an exit status, and holds no logic of its
own. What a command needs is imported when that command runs, so that `serve` starts without what only `probe` prints
with.

Exit status: 0 done, 1 could not be done, 2 the settings or the command are wrong.
"""

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from agent.command_options import load_settings, settings_options, settings_or_exit, tell_warnings
from agent.config import Settings
from agent.config_sources import Loaded
from common.command_line import LazyGroup, fail, output_option, unhandled_error
from common.settings import printable_value
from common.version import VERSION

# The library's C core writes lines of its own to standard error; our log has what they say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")


_LAZY = {
    "snapshots": "agent.snapshot_commands:snapshots",
    "accept": "agent.accept_commands:accept",
    "certs": "agent.certs_commands:certs",
    "doctor": "agent.doctor_commands:doctor",
}


@click.group(
    cls=LazyGroup, lazy=_LAZY, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(VERSION, message="%(version)s")
def cli() -> None:
    """Answer what this VM host has, what of it may be scheduled, and keep its VM snapshots."""


@cli.command()
@settings_options
def serve(config_file: str | None, **options: str | None) -> None:
    """Serve the gRPC API until SIGTERM or SIGINT."""
    loaded = load_settings(config_file, options)
    settings = settings_or_exit(loaded)
    import logging

    from common.logging import set_up_logging

    set_up_logging(settings.log_format, settings.log_level, node=settings.node_name)
    _warn(loaded)
    import asyncio

    from agent import app
    from common.program import StartError

    try:
        asyncio.run(app.serve(settings))
    except StartError as error:
        fail(str(error), error.status)
    except Exception:
        logging.getLogger(__name__).exception("the agent broke")
        raise


@cli.command()
@output_option
@settings_options
def probe(output: str, config_file: str | None, **options: str | None) -> None:
    """Read this host once and print the report that would be served."""
    loaded = load_settings(config_file, options)
    settings = settings_or_exit(loaded)
    tell_warnings(loaded)
    from agent import printing

    printing.print_report(_probe(settings), output)


@cli.command(short_help="Show how each number comes about.")
@click.argument("resource", required=False)
@click.option(
    "--address", metavar="HOST:PORT", help="Ask the agent that runs there (plain text) instead of reading this host."
)
@settings_options
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
            fail(str(error), 1)
    else:
        loaded = load_settings(config_file, options)
        settings = settings_or_exit(loaded)
        tell_warnings(loaded)
        report = _probe(settings)
    known = [entry.name for entry in report.resources]
    if resource is not None and resource not in known:
        fail(f"resource {printable_value(resource)}: must be one of {', '.join(known)}", 2)
    printing.print_explanation(report, resource)


@cli.group()
def config() -> None:
    """Show or check the settings."""


@config.command("show", short_help="Print every effective value with its source.")
@output_option
@settings_options
def config_show(output: str, config_file: str | None, **options: str | None) -> None:
    """Print every effective value with its source; problems follow, with exit status 2."""
    loaded = load_settings(config_file, options)
    from common.printing import print_settings

    print_settings(loaded.values, output)
    tell_warnings(loaded)
    settings_or_exit(loaded)


@config.command("check", short_help="Report every problem with the settings at once.")
@settings_options
def config_check(config_file: str | None, **options: str | None) -> None:
    """Report every problem with the settings at once; exit status 2 if there is one."""
    loaded = load_settings(config_file, options)
    tell_warnings(loaded)
    settings_or_exit(loaded)
    click.echo("settings are valid")


def main() -> NoReturn:
    """Run the command line. What nobody foresaw ends as one sentence too; `serve` has logged where it happened."""
    try:
        cli(prog_name="cocoon-node-agent")
    except Exception as error:
        fail(unhandled_error(error), 1)
    sys.exit(0)


def _warn(loaded: Loaded) -> None:
    import logging

    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("unknown setting: %s", warning)


def _probe(settings: Settings) -> "NodeResourcesReport":
    from agent import app
    from common.program import StartError

    if problems := app.host_problems(settings):
        fail("\n".join(problems), 2)
    try:
        return app.probe_once(settings)
    except StartError as error:
        fail(str(error), error.status)


if TYPE_CHECKING:
    from cocoonstack.node.v1.node_resources_pb2 import NodeResourcesReport
