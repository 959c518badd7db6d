"""The help of every command on a terminal of 80 columns."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from agent.cli import cli as agent_cli
from controller.cli import cli as controller_cli


def _groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _groups(command, (*path, name))


@pytest.mark.parametrize(
    ("cli", "path"),
    [
        pytest.param(cli, path, id=" ".join((program, *path)))
        for program, cli in (("agent", agent_cli), ("controller", controller_cli))
        for path in _groups(cli)
    ],
)
def test_no_summary_is_cut_off(cli: click.Group, path: tuple[str, ...]) -> None:
    answer = CliRunner().invoke(cli, [*path, "--help"], terminal_width=80)
    assert answer.exit_code == 0
    _, _, listed = answer.output.partition("Commands:\n")
    assert listed
    assert "..." not in listed
