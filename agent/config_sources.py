"""Where settings come from, and every problem with them at once.

Why this exists: an operator whose agent does not start has to see all that is wrong in one go, each with the variable,
the value, where the value came from and the rule. Command line beats environment beats file beats default; an empty
value is an unset one at each level. The file is the one systemd's `EnvironmentFile=` reads on these hosts.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from agent.config import CONFIG_FILE_VARIABLE, EMPTY_LISTS, SETTINGS, Setting, Settings

_PREFIX = "COCOON_NODE_"
_CONTROLLER_PREFIX = "COCOON_NODE_CONTROLLER_"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_LENGTH = 100
_MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the settings: which variable, its value (None: none is at fault), its source, the rule."""

    variable: str
    value: str | None
    source: str
    rule: str

    def __str__(self) -> str:
        """Return the sentence for the operator."""
        value = "" if self.value is None else f"={shown(self.value)}"
        return f"{self.variable}{value} ({self.source}): {self.rule}"


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """One setting as it stands: its text (None when unset) and where that came from."""

    setting: Setting
    text: str | None
    source: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the sources gave: `settings` is None exactly when there are `problems`."""

    settings: Settings | None
    values: tuple[EffectiveValue, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Line:
    text: str
    number: int


def load(options: Mapping[str, str | None], environ: Mapping[str, str], path: str | None = None) -> Loaded:
    """Put the sources together. `options` are texts of the command line by setting name; `path` is the settings file.

    Never raises for what an operator wrote: everything wrong is in the answer's `problems`.
    """
    path = path or environ.get(CONFIG_FILE_VARIABLE) or None
    file_values, problems = _read_file(path) if path else ({}, [])
    effective = []
    parsed: dict[str, object] = {}
    for setting in SETTINGS:
        value = _effective(setting, options, environ, file_values, path, parsed)
        effective.append(value)
        try:
            parsed[setting.name] = _parsed(value)
        except ValueError:
            source = value.source
            if value.source == "default" and callable(setting.default):
                source = "taken from the host; set the variable to override"
            problems.append(Problem(setting.variable, value.text, source, setting.rule))
    problems += _conflicts(parsed, {value.setting.name: value.source for value in effective})
    settings = None if problems else Settings(**parsed)  # type: ignore[arg-type]  # the table's parsers give the types
    return Loaded(settings, tuple(effective), tuple(problems), tuple(_unknown(environ, file_values, path)))


def shown(value: str) -> str:
    """Return a value for a message: quoted, on one line, cut at 100 characters."""
    cut = value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…"
    return '"' + "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut) + '"'


def parse_environment_file(text: str) -> tuple[dict[str, _Line], list[tuple[int, str]]]:
    """Read `NAME=value` lines; returns the values by name, and (line number, rule broken) for every other line.

    As systemd reads them: blank lines and lines that start with `#` or `;` are comments, white space around a bare
    value is dropped, a value in single or double quotes keeps it, a backslash in double quotes escapes. The last line
    for a name wins. A value does not go on in the next line.
    """
    values: dict[str, _Line] = {}
    wrong = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        name, equals, rest = line.partition("=")
        if not equals or not _VARIABLE.fullmatch(name.strip()):
            wrong.append((number, "must be NAME=value"))
            continue
        value = _unquoted(rest.strip())
        if value is None:
            wrong.append((number, "must be a bare value or one in a pair of quotes, on one line"))
        else:
            values[name.strip()] = _Line(value, number)
    return values, wrong


def _unquoted(text: str) -> str | None:
    if text[:1] == "'":
        return text[1:-1] if len(text) > 1 and text.find("'", 1) == len(text) - 1 else None
    if text[:1] == '"':
        match = re.fullmatch(r'"((?:[^"\\]|\\.)*)"', text)
        return re.sub(r"\\(.)", r"\1", match[1]) if match else None
    return None if text.endswith("\\") else text


def _read_file(path: str) -> tuple[dict[str, _Line], list[Problem]]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            return {}, [Problem("--config", path, "command line", "must be a file of at most 1 MiB")]
        values, wrong = parse_environment_file(content.decode("utf-8"))
    except OSError as error:
        return {}, [
            Problem("--config", path, "command line", f"must be a readable file: {os.strerror(error.errno or 0)}")
        ]
    except ValueError:
        return {}, [Problem("--config", path, "command line", "must be text in UTF-8")]
    return values, [Problem(f"line {number}", None, path, rule) for number, rule in wrong]


def _effective(
    setting: Setting,
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    file_values: Mapping[str, _Line],
    path: str | None,
    before: Mapping[str, object],
) -> EffectiveValue:
    if text := options.get(setting.name):
        return EffectiveValue(setting, text, f"command line, {setting.option}")
    if text := environ.get(setting.variable):
        return EffectiveValue(setting, text, "environment")
    line = file_values.get(setting.variable)
    if line is not None and line.text:
        return EffectiveValue(setting, line.text, f"{path}:{line.number}")
    default = setting.default
    return EffectiveValue(setting, default(before) if callable(default) else default, "default")


def _parsed(value: EffectiveValue) -> object:
    if value.text is None:
        return () if value.setting.name in EMPTY_LISTS else None
    return value.setting.parse(value.text)


def _conflicts(parsed: Mapping[str, object], sources: Mapping[str, str]) -> list[Problem]:
    """Rules over several settings; one whose part has a problem already is left out."""
    found = []
    high, low = parsed.get("high_watermark_percent"), parsed.get("low_watermark_percent")
    if isinstance(high, int) and isinstance(low, int) and low >= high:
        rule = f"must be less than COCOON_NODE_HIGH_WATERMARK_PERCENT, which is {high}"
        found.append(Problem("COCOON_NODE_LOW_WATERMARK_PERCENT", str(low), sources["low_watermark_percent"], rule))
    tls = [name for name in ("tls_cert_file", "tls_key_file", "tls_client_ca_file") if parsed.get(name)]
    if 0 < len(tls) < 3:
        rule = "certificate, key and client authorities must be given together"
        found.append(Problem("COCOON_NODE_TLS_CERT_FILE, _KEY_FILE, _CLIENT_CA_FILE", None, sources[tls[0]], rule))
    listen = parsed.get("listen")
    if isinstance(listen, tuple) and not tls:
        rule = (
            "must be loopback or a Unix socket, because without COCOON_NODE_TLS_CERT_FILE, _KEY_FILE and"
            " _CLIENT_CA_FILE everyone who reaches the address could read and remove snapshots"
        )
        found += [
            Problem("COCOON_NODE_LISTEN", str(address), sources["listen"], rule)
            for address in listen
            if not address.is_local
        ]
    return found


def _unknown(environ: Mapping[str, str], file_values: Mapping[str, _Line], path: str | None) -> list[str]:
    """Name every `COCOON_NODE_*` variable that is no setting, the controller's aside: most are misspelt."""
    known = {setting.variable for setting in SETTINGS} | {CONFIG_FILE_VARIABLE}
    found = {name: f"{path}:{line.number}" for name, line in file_values.items()}
    found |= dict.fromkeys(environ, "environment")
    return [
        f"{name} ({source}): no such setting{_suggestion(name, known)}"
        for name, source in sorted(found.items())
        if name.startswith(_PREFIX) and not name.startswith(_CONTROLLER_PREFIX) and name not in known
    ]


def _suggestion(name: str, known: set[str]) -> str:
    import difflib  # needed for a misspelt name only, and not cheap to import

    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
