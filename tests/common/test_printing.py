"""What programs are given: YAML and JSON say the same, whatever the texts are."""

import contextlib
import io
import json
from collections.abc import Callable

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from common.printing import print_data, print_settings, print_yaml_documents
from common.settings import EffectiveValue, Setting

# A lone surrogate cannot be written to any output.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
DATA = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
)
NAME = Setting("name", "APP_NAME", None, str, "must be a name", "Who.")


def _printed(write: Callable[[], None]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        write()
    return output.getvalue()


@given(DATA)
def test_yaml_and_json_say_the_same(data: object) -> None:
    assert yaml.safe_load(_printed(lambda: print_data(data, "yaml"))) == data
    assert json.loads(_printed(lambda: print_data(data, "json"))) == data


@pytest.mark.parametrize("text", ["1e3", "0x10", "010", "1_000", "12:30", "on", "No", "~", ".5", "2001-01-01", ""])
def test_text_that_a_reader_could_take_for_something_else_is_quoted(text: str) -> None:
    assert _printed(lambda: print_yaml_documents([{"key": text}])) == f'---\nkey: "{text}"\n'


@pytest.mark.parametrize(("text", "shown"), [(None, "-"), ("a\x1b[31m\nb", r"a\x1b[31m\nb"), ("[bold]x", "[bold]x")])
def test_a_table_shows_settings_on_one_line_each(text: str | None, shown: str) -> None:
    lines = _printed(lambda: print_settings([EffectiveValue(NAME, text, "default")], "table")).splitlines()
    assert [line.split() for line in lines] == [["VARIABLE", "VALUE", "SOURCE"], ["APP_NAME", shown, "default"]]
