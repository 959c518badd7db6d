"""Log output of both programs: one line a record, as JSON or text, that no logged string can break or forge.

Why this exists: names of pods, snapshots and files come from others. A line break or an escape sequence in one of them
must not look like a record of ours, neither in a log store nor on a terminal. What belongs to a whole call, such as its
request's id, is bound once and stands on every line that the call causes.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TextIO

_ATTRIBUTE = "cocoon_fields"
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
# Others' texts may be megabytes long. Enough for a traceback, and for every sentence of ours.
_MAX_CHARACTERS = 8_000
_NOTHING: Mapping[str, object] = {}
_BOUND: ContextVar[Mapping[str, object]] = ContextVar("bound log fields", default=_NOTHING)


def fields(**values: object) -> dict[str, dict[str, object]]:
    """Return the `extra=` argument that adds fields to a record: `log.info("listening", extra=fields(port=1))`."""
    return {_ATTRIBUTE: values}


def bind_fields(**values: object) -> None:
    """Add fields to every record that this task, and the threads it waits for, log from now on."""
    _BOUND.set({**_BOUND.get(), **values})


def set_up_logging(log_format: str, level: str, stream: TextIO | None = None, **always: object) -> None:
    """Send all records of at least `level` (debug, info, warning, error) to `stream`, standard error by default.

    `log_format` is `json` or `text`; the fields `always` are on every record. Calling it again replaces what an earlier
    call set up. What ends a thread is a record too, so that nothing is written past the formatter.
    """
    output = logging.StreamHandler(sys.stderr if stream is None else stream)
    output.setFormatter(JsonFormatter(always) if log_format == "json" else TextFormatter(always))
    root = logging.getLogger()
    root.handlers[:] = [output]
    root.setLevel(_LEVELS[level])
    threading.excepthook = _thread_ended
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


class _LineFormatter(logging.Formatter):
    """What both forms share: the fields of a record, in their order, none of them longer than a line should be."""

    def __init__(self, always: Mapping[str, object] = _NOTHING) -> None:
        super().__init__()
        self._always = always

    def fields_of(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the record's own fields, then those of the call and of the program that it does not have itself."""
        own: dict[str, object] = getattr(record, _ATTRIBUTE, {})
        found = own | {key: value for key, value in {**self._always, **_BOUND.get()}.items() if key not in own}
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return {key: _cut(value) if isinstance(value, str) else value for key, value in found.items()}


class JsonFormatter(_LineFormatter):
    """One JSON object a record: `time` (UTC), `level`, `logger`, `message`, the record's fields, `error` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of ASCII JSON."""
        own = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        entry: dict[str, object] = {**own, **self.fields_of(record), **own}
        return json.dumps(entry, default=_text)


class TextFormatter(_LineFormatter):
    """`time level logger: message key=value …`, every value escaped to one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of printable text."""
        message = _text_value(record.getMessage(), ambiguous='="')
        parts = [f"{_utc(record.created)} {record.levelname.lower():<7} {record.name}: {message}"]
        parts += [f"{printable(key)}={_text_value(value)}" for key, value in self.fields_of(record).items()]
        return " ".join(parts)


def _text_value(value: object, ambiguous: str = ' "=') -> str:
    text = printable(_cut(_text(value)))
    # Quoted whenever it could be read as more than one field.
    return json.dumps(text, ensure_ascii=False) if not text or any(mark in text for mark in ambiguous) else text


def _text(value: object) -> str:
    """Return what a value says; what cannot say anything must not cost the record."""
    try:
        return str(value)
    except Exception as error:
        return f"{type(value).__name__} without a text: {type(error).__name__}"


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]} … and {len(text) - _MAX_CHARACTERS} characters more"


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is None or isinstance(ended.exc_value, SystemExit):
        return
    name = ended.thread.name if ended.thread is not None else ""
    logging.getLogger(__name__).error("a thread broke", exc_info=ended.exc_value, extra=fields(thread=name))


def _utc(seconds: float) -> str:
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"
