"""The commands `accept …`: an operator's word that a change of identity is meant.

Why this exists: another node name, cluster or disk looks the same as a mistake; only a person on the host can tell.
"""

from collections.abc import Callable

import click

from agent.command_options import load_settings, settings_options, settings_or_exit
from agent.config import Settings
from common.command_line import fail


@click.group(short_help="Say that a change of identity is meant.")
def accept() -> None:
    """Say that a changed node name, cluster, disk or clock is meant; with the agent stopped."""


@accept.command()
@settings_options
def node(config_file: str | None, **options: str | None) -> None:
    """Take the configured node name as this host's."""
    from agent.snapshots.accept import accept_node

    _accept(config_file, options, accept_node)


@accept.command()
@click.option("--cluster-id", default="", metavar="UID", help="The cluster's id; the next one that calls without it.")
@settings_options
def cluster(cluster_id: str, config_file: str | None, **options: str | None) -> None:
    """Take another cluster's controller as this host's."""
    from agent.snapshots.accept import accept_cluster

    _accept(config_file, options, lambda settings: accept_cluster(settings, cluster_id))


@accept.command()
@settings_options
def store(config_file: str | None, **options: str | None) -> None:
    """Take the disk that is mounted now as the right one."""
    from agent.snapshots.accept import accept_store

    _accept(config_file, options, accept_store)


@accept.command()
@settings_options
def clock(config_file: str | None, **options: str | None) -> None:
    """Believe this host's clock again."""
    from agent.snapshots.accept import accept_clock

    _accept(config_file, options, accept_clock)


def _accept(config_file: str | None, options: dict[str, str | None], act: Callable[[Settings], str]) -> None:
    from agent.snapshots.errors import SnapshotError

    settings = settings_or_exit(load_settings(config_file, options))
    try:
        click.echo(act(settings))
    except SnapshotError as error:
        fail(str(error), 1)
