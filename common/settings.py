"""Settings from a table: command line beats environment beats file beats default, and every problem at once.

Why this exists: a program describes each setting once, with its rule in words; its options, variables, file lines,
messages and `config show` all come from that table. An empty value is an unset one at each level. The file has the
form that systemd's `EnvironmentFile=` and container runtimes read: `NAME=value` lines.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common.logging import printable

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPORT = re.compile(r"^export[ \t]+")
# The longest that fits comes first.
_PREFIXES = ("COCOON_NODE_CONTROLLER_", "COCOON_NODE_", "COCOON_", "VK_")
_MAX_FILE_BYTES = 1024 * 1024
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a table.

    `name` is the attribute. The option is the variable without its prefix, so that people can tell one from the other:
    `VK_NODE_CPU` is `--node-cpu`. `default` is a text read like any other, a function that makes
    such a text, or None for unset (then `parse` is not called and the value is None). `parse` raises `ValueError` for a
    text that breaks `rule`; an error with a text of its own says more exactly what is wrong.
    """

    name: str
    variable: str
    default: str | Callable[[], str] | None
    parse: Callable[[str], object]
    rule: str
    help: str

    @property
    def option(self) -> str:
        """The command line's spelling."""
        prefix = next((prefix for prefix in _PREFIXES if self.variable.startswith(prefix)), "")
        return "--" + self.variable.removeprefix(prefix).lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting as it stands: its text (None when unset) and where that came from."""

    setting: Setting
    text: str | None
    source: str


class SettingsError(Exception):
    """Settings that cannot be used; `problems` are whole sentences, one a mistake."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Keep all of them."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


def gather(
    table: Sequence[Setting],
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    path: str | None,
    prefix: str,
) -> tuple[list[EffectiveValue], list[str]]:
    """Return the effective texts of a table, and what is wrong with the file at `path`.

    `options` holds texts of the command line by setting name. A line of the file whose name begins with `prefix` must
    be a setting; other lines belong to other programs that share the file.
    """
    lines, problems = read_settings_file(path) if path else ({}, [])
    sources = {name: f"{path}:{number}" for name, (_, number) in lines.items()}
    return effective_values(table, options, environ, lines, path), problems + unknown_settings(table, sources, prefix)


def effective_values(
    table: Sequence[Setting],
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    lines: Mapping[str, tuple[str, int]],
    path: str | None,
) -> list[EffectiveValue]:
    """Return the effective text of each setting; `lines` are those of the file at `path`, by variable."""
    return [_effective(setting, options, environ, lines, path) for setting in table]


def unknown_settings(table: Sequence[Setting], sources: Mapping[str, str], prefix: str) -> list[str]:
    """Return a sentence for each name that begins with `prefix` and is no setting; `sources` tell where each stands."""
    known = {setting.variable for setting in table}
    return [
        f"{name} ({source}): no such setting{_suggestion(name, known)}"
        for name, source in sources.items()
        if name.startswith(prefix) and name not in known
    ]


def parse_all(values: Sequence[EffectiveValue]) -> tuple[dict[str, object], list[str]]:
    """Return the values by setting name, without those that break their rule, and a sentence for each of these."""
    parsed: dict[str, object] = {}
    problems: list[str] = []
    for value in values:
        try:
            parsed[value.setting.name] = None if value.text is None else value.setting.parse(value.text)
        except ValueError as error:
            detail = str(error)
            more = f": {detail}" if detail and detail != value.text else ""
            shown = printable_value(value.text or "")
            problems.append(f"{value.setting.variable}={shown} ({value.source}): {value.setting.rule}{more}")
    return parsed, problems


def printable_value(text: str) -> str:
    """Return a value for a message: quoted, on one line, cut at 100 characters."""
    cut = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return f'"{printable(cut)}"'


def parse_environment_file(text: str) -> tuple[dict[str, tuple[str, int]], list[tuple[int, str]]]:
    """Read `NAME=value` lines; return (value, line number) by name, and (line number, rule broken) for other lines.

    Blank lines and lines that start with `#` or `;` are comments. A value in a pair of quotes keeps its white space;
    in double quotes a backslash escapes. The last line for a name wins. Files that shells read as well may say
    `export` before a name, and editors of other systems leave a mark of the encoding and carriage returns.
    """
    values: dict[str, tuple[str, int]] = {}
    wrong: list[tuple[int, str]] = []
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, rest = line.partition("=")
        name = _EXPORT.sub("", name, count=1).strip()
        value = _unquoted(rest.strip())
        if not equals or not _VARIABLE.fullmatch(name):
            wrong.append((number, "must be NAME=value, such as VK_NODE_CPU=32, without spaces in NAME"))
        elif value is None:
            wrong.append((number, "must be a bare value or one in a pair of quotes, on one line"))
        else:
            values[name] = (value, number)
    return values, wrong


def read_settings_file(path: str) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """Return (value, line number) by name, and a sentence for everything that is wrong with the file."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            return {}, [f"{path}: must be a file of at most 1 MiB"]
        values, wrong = parse_environment_file(content.decode("utf-8"))
    except OSError as error:
        return {}, [f"{path}: must be a readable file: {os.strerror(error.errno or 0)}"]
    except ValueError:
        return {}, [f"{path}: must be text in UTF-8"]
    return values, [f"{path}:{number}: {rule}" for number, rule in wrong]


def _unquoted(text: str) -> str | None:
    if text[:1] == "'":
        return text[1:-1] if len(text) > 1 and text.find("'", 1) == len(text) - 1 else None
    if text[:1] == '"':
        match = re.fullmatch(r'"((?:[^"\\]|\\.)*)"', text)
        return re.sub(r"\\(.)", r"\1", match[1]) if match else None
    return None if text.endswith("\\") else text


def _effective(
    setting: Setting,
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    lines: Mapping[str, tuple[str, int]],
    path: str | None,
) -> EffectiveValue:
    if text := options.get(setting.name):
        return EffectiveValue(setting, text, f"command line, {setting.option}")
    if text := environ.get(setting.variable):
        return EffectiveValue(setting, text, "environment")
    line_text, number = lines.get(setting.variable, ("", 0))
    if line_text:
        return EffectiveValue(setting, line_text, f"{path}:{number}")
    default = setting.default
    return EffectiveValue(setting, default() if callable(default) else default, "default")


def _suggestion(name: str, known: set[str]) -> str:
    import difflib  # needed for a misspelt name only, and not cheap

    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
