"""Settings from a table: which source wins, what is wrong and where it stands."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.settings import Setting, gather, parse_all, parse_environment_file, printable_value

TABLE = (
    Setting("count", "APP_COUNT", "1", int, "must be a whole number", "How many."),
    Setting("name", "APP_NAME", None, str, "must be a name", "Who."),
)


@pytest.mark.parametrize(
    ("option", "environment", "line", "text", "source"),
    [
        ("4", "3", "2", "4", "command line, --app-count"),
        (None, "3", "2", "3", "environment"),
        ("", "3", "2", "3", "environment"),
        (None, None, "2", "2", ":1"),
        (None, "", "2", "2", ":1"),
        (None, None, "", "1", "default"),
        (None, None, None, "1", "default"),
    ],
)
def test_the_nearest_source_wins_and_empty_is_unset(
    tmp_path: Path, option: str | None, environment: str | None, line: str | None, text: str, source: str
) -> None:
    path = tmp_path / "settings"
    path.write_text("" if line is None else f"APP_COUNT={line}\n")
    environ = {} if environment is None else {"APP_COUNT": environment}
    values, problems = gather(TABLE, {"count": option}, environ, str(path), "APP_")
    assert problems == []
    assert values[0].text == text
    assert values[0].source.endswith(source)
    assert parse_all(values)[0] == {"count": int(text), "name": None}


def test_every_problem_at_once(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text('APP_COUNT=x\nno line\nAPP_NAMES=y\nOTHER=z\nAPP_NAME="half\n')
    values, problems = gather(TABLE, {}, {"APP_UNKNOWN": "is nobody's mistake"}, str(path), "APP_")
    problems += parse_all(values)[1]
    assert problems == [
        f"{path}:2: must be NAME=value, such as VK_NODE_CPU=32, without spaces in NAME",
        f"{path}:5: must be a bare value or one in a pair of quotes, on one line",
        f"APP_NAMES ({path}:3): no such setting; did you mean APP_NAME?",
        f"APP_COUNT=\"x\" ({path}:1): must be a whole number: invalid literal for int() with base 10: 'x'",
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "No such file"), (b"\xff\xfe", "UTF-8"), (b"#" * (1024 * 1024 + 1), "at most 1 MiB")],
)
def test_unreadable_file_is_a_problem(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "settings"
    if content is not None:
        path.write_bytes(content)
    values, problems = gather(TABLE, {}, {}, str(path), "APP_")
    assert len(problems) == 1
    assert words in problems[0]
    assert values[0].source == "default"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        (" A = b c ", "b c"),
        ("A='b  '", "b  "),
        ('A="b \\" c\\\\"', 'b " c\\'),
        ("A=", ""),
        ("A=b=c", "b=c"),
        ("A=b#c", "b#c"),
        ("A=b\r", "b"),
        ("A='b '\r", "b "),
        ("\ufeffA=b", "b"),
        ("export A=b", "b"),
        ("\texport \t A='b'", "b"),
    ],
)
def test_file_values(line: str, value: str) -> None:
    assert parse_environment_file(line) == ({"A": (value, 1)}, [])


@pytest.mark.parametrize(
    "line", ["A", "A b", "=b", "1A=b", "export", "export A", "export export A=b", "A.B=c", "A=\\", "A='b"]
)
def test_lines_that_are_refused(line: str) -> None:
    values, wrong = parse_environment_file(line)
    assert (values, [number for number, _ in wrong]) == ({}, [1])


@given(st.text())
def test_any_file_is_read_or_complained_about(text: str) -> None:
    values, wrong = parse_environment_file(text)
    lines = [line for line in text.removeprefix("\ufeff").split("\n") if line.strip() and line.strip()[0] not in "#;"]
    assert len(values) + len(wrong) <= len(lines)
    assert bool(values) or bool(wrong) or not lines


@given(st.text())
def test_shown_values_are_one_short_line(text: str) -> None:
    shown = printable_value(text)
    assert shown.isprintable()
    assert shown.startswith('"')
