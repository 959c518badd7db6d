"""One record is one line, whatever is logged."""

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.logging import JsonFormatter, TextFormatter, bind_fields, fields, printable, set_up_logging

HOSTILE = ["a\nb", "\r\n2026-01-01T00:00:00Z info x: forged", "\x1b[2J", "a\u2028b", "\x00", "\ud800", "\u202eabc"]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(text: str, /, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("agent.x", logging.WARNING, __file__, 1, text, None, None)
    made.__dict__.update(fields(**values))
    return made


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_one_printable_line(text: str) -> None:
    line = TextFormatter().format(record(text, name=text))
    assert line.isprintable()
    entry = json.loads(JsonFormatter().format(record(text, name=text)))
    assert (entry["message"], entry["name"]) == (text, text)


@given(st.text())
def test_any_text_is_one_line(text: str) -> None:
    assert printable(text).isprintable()
    assert TextFormatter().format(record(text, value=text)).isprintable()
    assert "\n" not in JsonFormatter().format(record(text, value=text))


def test_a_field_cannot_pose_as_the_record() -> None:
    made = record("real", level="error", message="forged", time="never", logger="x")
    entry = json.loads(JsonFormatter().format(made))
    assert (entry["level"], entry["message"], entry["logger"]) == ("warning", "real", "agent.x")


def test_a_value_cannot_pose_as_two_fields() -> None:
    line = TextFormatter().format(record("m", name='a b="c" level=error', empty=""))
    assert line.endswith(' name="a b=\\"c\\" level=error" empty=""')


def test_an_error_is_on_the_same_line() -> None:
    made = record("failed")
    try:
        int("two\nlines")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "ValueError" in TextFormatter().format(made)
    assert "\n" not in TextFormatter().format(made)
    assert "two\\nlines" in json.loads(JsonFormatter().format(made))["error"]


@pytest.mark.parametrize(("level", "expected"), [("debug", 3), ("info", 2), ("error", 1)])
def test_levels(root_logger: logging.Logger, level: str, expected: int) -> None:
    output = io.StringIO()
    set_up_logging("json", level, output)
    log = logging.getLogger("common.test")
    log.debug("a")
    log.info("b", extra=fields(number=1))
    log.error("c")
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert len(lines) == expected
    assert {line["logger"] for line in lines} == {"common.test"}


def test_setting_up_again_replaces(root_logger: logging.Logger) -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging("text", "info", first)
    set_up_logging("text", "info", second)
    logging.getLogger("x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_a_message_cannot_pose_as_fields() -> None:
    line = TextFormatter().format(record("over level=error"))
    assert line.endswith(' agent.x: "over level=error"')


def test_a_text_of_megabytes_is_cut() -> None:
    for line in (
        TextFormatter().format(record("m" * 10**6, name="n" * 10**6)),
        JsonFormatter().format(record("m" * 10**6)),
    ):
        assert len(line) < 20_000
        assert "characters more" in line


class Mute:
    """Something that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_what_cannot_be_told_costs_no_record(formatter: logging.Formatter) -> None:
    line = formatter.format(record("m", name=Mute()))
    assert "Mute without a text: RuntimeError" in line


async def test_bound_fields_are_on_every_line_of_a_task(root_logger: logging.Logger) -> None:
    output = io.StringIO()
    set_up_logging("json", "info", output, node="a")

    async def call(request_id: str) -> None:
        bind_fields(request_id=request_id)
        await asyncio.sleep(0)
        await asyncio.to_thread(logging.getLogger("x").info, request_id)

    await asyncio.gather(call("1"), call("2"))
    logging.getLogger("x").info("after", extra=fields(node="own"))
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert sorted((line["message"], line["node"], line.get("request_id", "")) for line in lines) == [
        ("1", "a", "1"),
        ("2", "a", "2"),
        ("after", "own", ""),
    ]


def test_what_ends_a_thread_is_one_line(root_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    output = io.StringIO()
    set_up_logging("text", "info", output)
    thread = threading.Thread(target=int, args=("two\nlines",), name="worker")
    thread.start()
    thread.join()
    (line,) = output.getvalue().splitlines()
    assert " a thread broke" in line.replace('"', "")
    assert "thread=worker" in line
