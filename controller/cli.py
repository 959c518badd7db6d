"""The command line of the controller: run, plan, why, locate, seats, nodes, accept, forget, prune, config, version.

Why this exists: it turns words into settings and errors into sentences with an exit status, and holds no logic of its
own. What a command needs is imported when that command runs, so that `run` starts without what others print with.

Exit status: 0 done, 1 could not be done, 2 the settings or the command are wrong.
"""

import gc
import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

import click

from common.command_line import fail, output_option, settings_options, unhandled_error
from common.kubernetes_names import is_node_name, is_subdomain
from common.logging import printable
from common.settings import SettingsError, printable_value
from common.version import VERSION
from controller.config import SETTINGS, Settings, gather_values, load_settings

# The library's C core writes lines of its own to standard error; our log has what they say.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

_Result = TypeVar("_Result")

_settings_options = settings_options(SETTINGS, flags=("in_cluster", "audit_only", "seat_release", "force_seat_release"))
_WAIT = click.option(
    "--wait-seconds",
    type=click.FloatRange(0.1, 600.0),
    default=10.0,
    show_default=True,
    help="How long agents may take to answer.",
)


def _node_names(_context: click.Context, _parameter: click.Parameter, given: str | tuple[str, ...]) -> object:
    """Refuse what is no node name, before it becomes part of a request's path."""
    for name in (given,) if isinstance(given, str) else given:
        if not is_node_name(name):
            fail(
                f"NODE {printable_value(name)}: must be a node name, an RFC 1123 subdomain of at most 63 characters", 2
            )
    return given


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(VERSION, message="%(version)s")
def cli() -> None:
    """Register and keep the Nodes of VM hosts as their agents report them."""


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(VERSION)


@cli.command()
@_settings_options
def run(config_file: str | None, **options: str | None) -> None:
    """Keep Nodes right until SIGTERM or SIGINT."""
    settings = _settings(config_file, options)
    from common.logging import set_up_logging

    set_up_logging(settings.log_format, settings.log_level)
    gc.disable()  # nothing that importing makes is garbage, and looking for it is a tenth of a start
    from controller import app

    gc.enable()
    _do(app.run(settings))


@cli.command(short_help="Print what `run` would send; nothing is changed.")
@click.option("--release", is_flag=True, help="Let the purges go that the leader's brake holds; asks no agent.")
@_WAIT
@_settings_options
def plan(release: bool, wait_seconds: float, config_file: str | None, **options: str | None) -> None:
    """Ask every agent once and print, as YAML, what `run` would send for Nodes and snapshots; nothing is changed."""
    settings = _settings(config_file, options, needs_agents=not release)
    from common.printing import print_yaml_documents
    from controller import commands, snapshot_commands

    if release:
        click.echo(_do(snapshot_commands.release(settings)))
        return
    documents, problems = _do(commands.plan_all(settings, wait_seconds))
    decisions, unasked = _do(snapshot_commands.plan_snapshots(settings, wait_seconds))
    print_yaml_documents(documents + decisions)
    if problems + unasked:
        fail("\n".join(problems + unasked), 1)


@cli.command(short_help="Say what was decided about a pod's snapshots.")
@click.argument("pod", metavar="NAMESPACE/POD")
@_WAIT
@_settings_options
def why(pod: str, wait_seconds: float, config_file: str | None, **options: str | None) -> None:
    """Say what was decided about a pod's snapshots and on what grounds, and what would be decided now."""
    namespace, slash, name = pod.partition("/")
    if not slash or not is_node_name(namespace) or not is_subdomain(name):
        fail(f"{printable_value(pod)}: must be NAMESPACE/POD", 2)
    settings = _settings(config_file, options)
    from controller import snapshot_commands

    lines, problems = _do(snapshot_commands.why(settings, namespace, name, wait_seconds))
    for line in lines:
        click.echo(printable(line))
    if problems:
        fail("\n".join(problems), 1)


@cli.command()
@click.argument("vm")
@output_option
@_WAIT
@_settings_options
def locate(vm: str, output: str, wait_seconds: float, config_file: str | None, **options: str | None) -> None:
    """Show which nodes hold snapshots of a VM, and in what state."""
    settings = _settings(config_file, options)
    from controller import snapshot_commands

    found, problems = _do(snapshot_commands.locate(settings, vm, wait_seconds))
    snapshot_commands.print_located(found, output)
    if problems:
        fail("\n".join(problems), 1)


@cli.group(invoke_without_command=True, short_help="Show which CocoonSets sleep; wake or suspend one.")
@output_option
@_WAIT
@_settings_options
@click.pass_context
def seats(
    context: click.Context, /, output: str, wait_seconds: float, config_file: str | None, **options: str | None
) -> None:
    """Show every set whose seat this controller keeps: its phase, its node, and whether its snapshot is kept there."""
    if context.invoked_subcommand is None:
        settings = _settings(config_file, options, needs_agents=False)
        from controller import seat_commands

        seat_commands.print_seats(_do(seat_commands.list_seats(settings, wait_seconds)), output)


@seats.command("suspend")
@click.argument("cocoon_set", metavar="NAMESPACE/NAME")
@_settings_options
def seats_suspend(cocoon_set: str, config_file: str | None, **options: str | None) -> None:
    """Put a set to sleep. Its seat is freed when its snapshot is safe."""
    _ask_for(cocoon_set, config_file, options, suspended=True)


@seats.command("wake")
@click.argument("cocoon_set", metavar="NAMESPACE/NAME")
@_settings_options
def seats_wake(cocoon_set: str, config_file: str | None, **options: str | None) -> None:
    """Wake a set. It lands on the node that kept its snapshot if that has room."""
    _ask_for(cocoon_set, config_file, options, suspended=False)


def _ask_for(cocoon_set: str, config_file: str | None, options: dict[str, str | None], *, suspended: bool) -> None:
    namespace, slash, name = cocoon_set.partition("/")
    if not slash or not is_node_name(namespace) or not is_subdomain(name):
        fail(f"{printable_value(cocoon_set)}: must be NAMESPACE/NAME", 2)
    settings = _settings(config_file, options, needs_agents=False)
    from controller import seat_commands

    click.echo(_do(seat_commands.set_suspended(settings, namespace, name, suspended=suspended)))


@cli.command()
@output_option
@_settings_options
def nodes(output: str, config_file: str | None, **options: str | None) -> None:
    """Show the Nodes of the fleet as the API server has them."""
    settings = _settings(config_file, options, needs_agents=False)
    from controller import commands, printing

    printing.print_nodes(_do(commands.list_nodes(settings)), output)


@cli.command(short_help="Say that another machine is right.")
@click.argument("node", callback=_node_names)
@click.option("--machine-id", metavar="ID", help="Which machine, when several answer as NODE.")
@_settings_options
def accept(node: str, machine_id: str | None, config_file: str | None, **options: str | None) -> None:
    """Say that another machine under the name NODE is right, such as a host that was reinstalled."""
    settings = _settings(config_file, options)
    from controller import commands

    click.echo(_do(commands.accept(settings, node, machine_id)))


@cli.command(short_help="Remove Node and Lease of a host that is gone.")
@click.argument("node", callback=_node_names)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_settings_options
def forget(node: str, yes: bool, config_file: str | None, **options: str | None) -> None:
    """Remove Node and Lease of a host that is gone for good; refused while its agent answers."""
    settings = _settings(config_file, options, needs_agents=False)
    from controller import commands

    _do(commands.check_forgettable(settings, node))
    if not yes:
        click.confirm(f"Remove the Node and the Lease {node}? Its pods go with it", abort=True)
    click.echo(_do(commands.forget(settings, node)))


@cli.command(short_help="Take everything of ours off Nodes.")
@click.argument("node", nargs=-1, callback=_node_names)
@click.option("--all", "every", is_flag=True, help="Every Node that carries anything of ours.")
@_settings_options
def prune(node: tuple[str, ...], every: bool, config_file: str | None, **options: str | None) -> None:
    """Take our labels, conditions and managed fields off Nodes, for uninstalling; the Nodes stay."""
    if bool(node) == every:
        fail("name the Nodes, or give --all", 2)
    settings = _settings(config_file, options, needs_agents=False)
    from controller import commands

    for line in _do(commands.prune(settings, node)):
        click.echo(line)


@cli.group()
def config() -> None:
    """Show or check the settings."""


@config.command("show", short_help="Print every effective value with its source.")
@output_option
@_settings_options
def config_show(output: str, config_file: str | None, **options: str | None) -> None:
    """Print every effective value with its source; problems follow, with exit status 2."""
    values, _ = gather_values(options, os.environ, config_file)
    from common.printing import print_settings

    print_settings(values, output)
    _settings(config_file, options)


@config.command("check", short_help="Report every problem with the settings at once.")
@_settings_options
def config_check(config_file: str | None, **options: str | None) -> None:
    """Report every problem with the settings of `run` at once; exit status 2 if there is one."""
    _settings(config_file, options)
    click.echo("settings are valid")


def main() -> NoReturn:
    """Run the command line. What nobody foresaw ends as one sentence too."""
    try:
        cli(prog_name="cocoon-node-controller")
    except Exception as error:
        fail(unhandled_error(error), 1)
    sys.exit(0)


def _settings(config_file: str | None, options: dict[str, str | None], *, needs_agents: bool = True) -> Settings:
    try:
        settings = load_settings(options, os.environ, config_file, needs_agents=needs_agents)
    except SettingsError as error:
        fail("\n".join(error.problems), 2)
    from common.logging import set_up_logging

    # Commands that answer and end say what went wrong themselves; their log is for those who ask for it.
    set_up_logging(settings.log_format, settings.log_level)
    if settings.log_level != "debug":
        logging.getLogger().setLevel(logging.CRITICAL)
    return settings


def _do(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run one command's work; what it cannot do ends the program with a sentence."""
    import asyncio

    from common.program import StartError
    from controller.kube.errors import KubeError

    try:
        return asyncio.run(work)
    except StartError as error:
        fail(str(error), error.status)
    except KubeError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail("interrupted", 1)
    except Exception as error:
        # A fault of ours. People get a sentence; whoever mends it finds where it came from in the log of `run`.
        cause = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]
        logging.getLogger(__name__).exception("unexpected error")
        fail(f"unexpected {type(cause).__name__}: {cause}; --log-level debug logs where it came from", 1)


if __name__ == "__main__":
    main()
