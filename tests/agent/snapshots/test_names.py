"""Which names exist and who owns what by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots import names
from agent.snapshots.errors import InvalidNameError, quoted
from common.vm_names import is_purge_name, pod_vm_name

IMPOSSIBLE = [
    "",
    ".",
    "..",
    "../x",
    "a/../b",
    "/etc/passwd",
    "-rf",
    ".hidden",
    ".pending-vk-a-b",
    ".cocoon-node-trash",
    "a\0b",
    "a\nb",
    "vk-a-b\n",
    "a b",
    "x" * 254,
    "vk-\u0430-b",
    "\uff56k-a-b",
    "a\\b",
    "a\u202eb",
]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_names_are_refused_everywhere(name: str) -> None:
    """F26."""
    for require in (names.require_store_name, names.require_readable_name, names.require_purge_name):
        with pytest.raises(InvalidNameError):
            require(name)


@pytest.mark.parametrize("name", ["vk-a-b", "fork-vk-a-b", "vk-0", "vk-a.b-c", "vk-" + "a" * 246])
def test_names_a_purge_may_name(name: str) -> None:
    assert names.require_purge_name(name) == name
    assert names.is_store_name(name)


@pytest.mark.parametrize(
    "name",
    ["base", "vk-", "vk--a", "vk-a-", "vk-A", "fork-fork-vk-a", "fork-base", "xvk-a", "vk-a/b", "vk-" + "a" * 247],
)
def test_names_a_purge_may_not_name(name: str) -> None:
    """F31: an image's name is not a VM's."""
    assert not is_purge_name(name)


@pytest.mark.parametrize("name", ["a", "Base_1.2", "x" * 253, "a..b", "0"])
def test_names_that_may_stand_in_the_store(name: str) -> None:
    assert names.require_store_name(name) == name


@pytest.mark.parametrize("name", ["registry.example/a/b:1", "a:b", "a/b", "a@b"])
def test_names_that_exist_only_in_the_engine(name: str) -> None:
    assert names.is_readable_name(name)
    assert not names.is_store_name(name)


def test_a_prefix_decides_nothing() -> None:
    """F29."""
    assert names.owned_names("vk-a-b-0") == ("vk-a-b-0", "fork-vk-a-b-0")
    assert "vk-a-b-0-0" not in names.owned_names("vk-a-b-0")
    assert pod_vm_name("a-b", "c") == pod_vm_name("a", "b-c") == "vk-a-b-c"


@pytest.mark.parametrize(
    ("name", "vm_name"),
    [("vk-a-b", "vk-a-b"), ("fork-vk-a-b", "vk-a-b"), ("base", ""), ("fork-base", ""), ("fork-fork-vk-a", "")],
)
def test_the_vm_a_snapshot_belongs_to(name: str, vm_name: str) -> None:
    assert names.owning_vm(name) == vm_name


@given(st.text())
def test_a_name_that_may_be_changed_is_one_plain_path_component(name: str) -> None:
    """F26."""
    if names.is_store_name(name):
        assert name.isascii()
        assert not set(name) & {"/", "\0", "\n", " "}
        assert not name.startswith((".", "-"))
        assert 1 <= len(name) <= 253
    if is_purge_name(name):
        assert names.is_store_name(name)


@given(st.text())
def test_a_quoted_value_is_one_short_printable_line(value: str) -> None:
    text = quoted(value)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 100 * 10 + 12
