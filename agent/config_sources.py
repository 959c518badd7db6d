"""The agent's settings put together, and every problem with them at once.

Why this exists: an operator whose agent does not start has to see all that is wrong in one go, each with the variable,
the value, where the value came from and the rule. Hosts share one file between programs, so a name that is nobody's is
a warning here, not a mistake.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.config import CONFIG_FILE_VARIABLE, SETTINGS, Settings
from common.settings import (
    EffectiveValue,
    effective_values,
    parse_all,
    printable_value,
    read_settings_file,
    unknown_settings,
)

_PREFIX = "COCOON_NODE_"
_CONTROLLER_PREFIX = "COCOON_NODE_CONTROLLER_"
_TLS_FILES = ("tls_cert_file", "tls_key_file", "tls_client_ca_file")
_TLS_VARIABLES = "COCOON_NODE_TLS_CERT_FILE, _KEY_FILE and _CLIENT_CA_FILE"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What the sources gave: `settings` is None exactly when there are `problems`; both are whole sentences."""

    settings: Settings | None
    values: tuple[EffectiveValue, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def load(options: Mapping[str, str | None], environ: Mapping[str, str], path: str | None = None) -> Loaded:
    """Put the sources together. `options` are texts of the command line by setting name; `path` is the settings file.

    Never raises for what an operator wrote: everything wrong is in the answer's `problems`.
    """
    path = path or environ.get(CONFIG_FILE_VARIABLE) or None
    lines, problems = read_settings_file(path) if path else ({}, [])
    values = effective_values(SETTINGS, options, environ, lines, path)
    parsed, broken = parse_all(values)
    values = [_with_snapshot_dir(value, parsed) for value in values]
    problems += broken + _conflicts(parsed, {value.setting.name: value.source for value in values})
    settings = None if problems else Settings(**parsed)  # type: ignore[arg-type]  # the table's parsers give the types
    sources = dict.fromkeys(environ, "environment") | {name: f"{path}:{line[1]}" for name, line in lines.items()}
    return Loaded(settings, tuple(values), tuple(problems), tuple(_unknown(sources)))


def _with_snapshot_dir(value: EffectiveValue, parsed: dict[str, object]) -> EffectiveValue:
    """Put in the one default that follows from another setting: snapshots are kept below the root directory."""
    if value.setting.name != "snapshot_dir" or value.text is not None or "root_dir" not in parsed:
        return value
    below_root = f"{parsed['root_dir']}/snapshots".replace("//", "/")
    parsed["snapshot_dir"] = below_root
    return replace(value, text=below_root)


def _conflicts(parsed: Mapping[str, object], sources: Mapping[str, str]) -> list[str]:
    """Rules over several settings; one whose part has a problem already is left out."""
    found = []
    high, low = parsed.get("high_watermark_percent"), parsed.get("low_watermark_percent")
    if isinstance(high, int) and isinstance(low, int) and low >= high:
        source = sources["low_watermark_percent"]
        found.append(
            f'COCOON_NODE_LOW_WATERMARK_PERCENT="{low}" ({source}): must be less than'
            f" COCOON_NODE_HIGH_WATERMARK_PERCENT, which is {high}"
        )
    tls = [name for name in _TLS_FILES if parsed.get(name)]
    if 0 < len(tls) < len(_TLS_FILES):
        found.append(f"{_TLS_VARIABLES} ({sources[tls[0]]}): must be given together")
    listen = parsed.get("listen")
    if isinstance(listen, tuple) and not tls:
        found += [
            f"COCOON_NODE_LISTEN={printable_value(str(address))} ({sources['listen']}): must be loopback or a Unix"
            f" socket, because without {_TLS_VARIABLES} everyone who reaches it could read and remove snapshots"
            for address in listen
            if not address.is_local
        ]
    return found


def _unknown(sources: Mapping[str, str]) -> list[str]:
    ours = {
        name: source
        for name, source in sorted(sources.items())
        if name != CONFIG_FILE_VARIABLE and not name.startswith(_CONTROLLER_PREFIX)
    }
    return unknown_settings(SETTINGS, ours, _PREFIX)
