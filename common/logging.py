"""Log output of both programs: one line a record, as JSON or text, that no logged string can break or forge.

Why this exists: names of pods, snapshots and files come from others. A line break or an escape sequence in one of them
must not look like a record of ours, neither in a log store nor on a terminal.
"""

import json
import logging
import sys
import time
from typing import TextIO

_ATTRIBUTE = "cocoon_fields"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return the `extra=` argument that adds fields to a record: `log.info("listening", extra=fields(port=1))`."""
    return {_ATTRIBUTE: values}


def set_up_logging(log_format: str, level: str, stream: TextIO | None = None) -> None:
    """Send all records of at least `level` (debug, info, warning, error) to `stream`, standard error by default.

    `log_format` is `json` or `text`. Calling it again replaces what an earlier call set up.
    """
    output = logging.StreamHandler(sys.stderr if stream is None else stream)
    output.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(_LEVELS[level])
    # grpc's own records repeat what our calls already report, with tracebacks of the library.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)


def printable(value: object) -> str:
    """Return `str(value)` as one safe line: control and otherwise unprintable characters are escaped."""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )


class JsonFormatter(logging.Formatter):
    """One JSON object a record: `time` (UTC), `level`, `logger`, `message`, the record's fields, `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of ASCII JSON."""
        own = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry: dict[str, object] = {**own, **_fields_of(record), **own}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """`time level logger: message key=value …`, every value escaped to one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of printable text."""
        parts = [
            f"{_utc(record.created)} {record.levelname.lower():<7} {record.name}: {printable(record.getMessage())}"
        ]
        parts += [f"{key}={_text_value(value)}" for key, value in _fields_of(record).items()]
        if record.exc_info:
            parts.append(f"error={_text_value(self.formatException(record.exc_info))}")
        return " ".join(parts)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    return getattr(record, _ATTRIBUTE, {})


def _text_value(value: object) -> str:
    text = printable(value)
    # Quoted whenever it could be read as two fields.
    return json.dumps(text, ensure_ascii=False) if not text or any(mark in text for mark in ' "=') else text


def _utc(seconds: float) -> str:
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"
