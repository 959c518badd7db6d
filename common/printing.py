"""How the commands of both programs print: tables for people, JSON and YAML for programs.

Why this exists: the same data is asked for in three forms by two programs, and what an operator's script reads from one
of them must be read the same from the other.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.logging import printable
from common.settings import EffectiveValue

# Other readers of YAML take 1e3, 0x10 or `on` for what they are not; only plain words go without quotes.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*[A-Za-z0-9]")
_WORDS_WITH_A_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_PIPE_WIDTH = 200


class _Dumper(yaml.SafeDumper):
    """Quotes every text that some reader could take for a number, a time or a truth value."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS_WITH_A_MEANING
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _represent_text)


def new_table(*columns: str, right: Sequence[int] = ()) -> Table:
    """Return a table without lines; columns whose numbers are in `right` are aligned to the right."""
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="")
    for number, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if number in right else "left", overflow="fold")
    return table


def new_console() -> Console:
    """Return where tables go."""
    # Piped output has no width of its own, and wrapped columns are useless to whoever reads the pipe.
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_data(data: object, output: str) -> None:
    """Print data for programs, as `json` or `yaml`, with sorted keys."""
    if output == "json":
        click.echo(json.dumps(data, indent=2, sort_keys=True))
    else:
        click.echo(_yaml(data, sort_keys=True), nl=False)


def print_yaml_documents(documents: Sequence[Mapping[str, Any]]) -> None:
    """Print one YAML document each, with keys in the order they come, for people who read it."""
    for document in documents:
        click.echo("---")
        click.echo(_yaml(document, sort_keys=False), nl=False)


def print_settings(values: Sequence[EffectiveValue], output: str) -> None:
    """Print effective settings with their sources, as `table`, `json` or `yaml`."""
    if output != "table":
        shown = [{"variable": v.setting.variable, "value": v.text, "source": v.source} for v in values]
        print_data(shown, output)
        return
    table = new_table("VARIABLE", "VALUE", "SOURCE")
    for value in values:
        text = "-" if value.text is None else printable(value.text)
        table.add_row(value.setting.variable, text, printable(value.source))
    new_console().print(table)


def _yaml(data: object, *, sort_keys: bool) -> str:
    return str(
        yaml.dump(data, Dumper=_Dumper, sort_keys=sort_keys, default_flow_style=False, width=1000, allow_unicode=True)
    )
