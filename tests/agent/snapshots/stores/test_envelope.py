"""What the metadata of a snapshot is taken to say."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.snapshots.stores.envelope import (
    Envelope,
    EnvelopeInvalidError,
    EnvelopeTooNewError,
    decode_envelope,
    envelope_of_record,
    shortened_files,
    unix_seconds,
)

GIB = 1 << 30


def encoded(**config: object) -> bytes:
    return json.dumps({"version": 1, "config": {"id": "i", "name": "n", **config}}).encode()


def test_all_known_fields_are_read_and_others_ignored() -> None:
    data = encoded(
        image="img", hypervisor="firecracker", cpu=2, memory=GIB, storage=2 * GIB, nics=1, image_blob_ids={"x": {}}
    )
    assert decode_envelope(data) == Envelope("i", "n", "img", "firecracker", 2, GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\0" * 512, "not JSON"),
        (encoded()[:-3], "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"{}", "version 1"),
        (b'{"version": 1}', "version 1"),
        (b'{"version": true, "config": {}}', "version 1"),
        (b'{"version": "1", "config": {}}', "version 1"),
        (b'{"version": 0, "config": {}}', "version 1"),
        (b'{"version": 1, "config": []}', "version 1"),
        (b'{"version": 1, "config": null}', "version 1"),
    ],
)
def test_what_is_no_metadata_is_invalid(data: bytes, says: str) -> None:
    """F25."""
    with pytest.raises(EnvelopeInvalidError, match=says):
        decode_envelope(data)


def test_a_later_version_is_not_called_invalid() -> None:
    with pytest.raises(EnvelopeTooNewError, match="version 2"):
        decode_envelope(b'{"version": 2, "config": {"id": "i", "name": "n"}}')


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"cpu": "two"}, "cpu is not a count"),
        ({"memory": -1}, "memory is not a count"),
        ({"memory": 1 << 70}, "memory is not a count"),
        ({"cpu": 1 << 31}, "cpu is not a count"),
        ({"image": 7}, "image is not a text"),
        ({"created_at": "yesterday"}, "created_at is not a time"),
        ({"files": 3}, "neither a list nor a map"),
        ({"files": [{"name": "a"}]}, "not all names with sizes"),
        ({"id": 5}, "no id"),
        ({"id": "x" * 200}, "too long"),
    ],
)
def test_a_field_of_the_wrong_type_is_a_problem_and_no_verdict(config: dict[str, object], problem: str) -> None:
    envelope = decode_envelope(encoded(**config))
    assert envelope.name == "n"
    assert any(problem in found for found in envelope.problems)


def test_null_fields_are_absent_fields() -> None:
    assert decode_envelope(encoded(cpu=None, image=None, created_at=None)) == Envelope("i", "n")


@pytest.mark.parametrize(
    "config",
    [
        {"problems": ["made up"]},
        {"last_accessed_at": 5.0},
        {"created_at": 5.0},
        {"recorded_sizes": [["a", 1]]},
        {"snapshot_id": "other"},
    ],
)
def test_metadata_cannot_set_what_only_we_may_say(config: dict[str, object]) -> None:
    envelope = decode_envelope(encoded(**config))
    assert envelope.snapshot_id == "i"
    assert envelope.recorded_sizes == ()
    assert "made up" not in envelope.problems
    assert envelope.created_at == envelope.last_use_at == 0.0


@pytest.mark.parametrize(
    ("fields", "sizes", "problems"),
    [
        ({"memory": GIB}, {"memory-ranges": GIB}, 0),
        ({"memory": GIB}, {"memory-ranges": GIB - 1}, 0),
        ({"memory": GIB}, {"memory-ranges": GIB - (1 << 20)}, 1),
        ({"memory": GIB}, {"mem": 0}, 1),
        ({"memory": GIB}, {"state.json": 2}, 0),
        ({"storage": GIB}, {"cow.raw": GIB // 2}, 1),
        ({"storage": GIB}, {"overlay.qcow2": 1}, 0),
        ({}, {"memory-ranges": 0, "cow.raw": 0}, 0),
        ({"files": [{"name": "a", "size": 10}]}, {"a": 10}, 0),
        ({"files": [{"name": "a", "size": 10}]}, {"a": 9}, 1),
        ({"files": {"a": 10, "b": 0}}, {"b": 0}, 1),
    ],
)
def test_files_shorter_than_recorded(fields: dict[str, object], sizes: dict[str, int], problems: int) -> None:
    """F25."""
    assert len(shortened_files(decode_envelope(encoded(**fields)), sizes)) == problems


def test_sizes_may_stand_beside_the_config() -> None:
    data = b'{"version": 1, "config": {"id": "i", "name": "n"}, "files": {"a": 4}}'
    assert decode_envelope(data).recorded_sizes == (("a", 4),)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("2026-11-30T21:31:45.063666026Z", 1796074305.063666),
        ("2026-11-30T21:31:45+08:00", 1796045505.0),
        ("0001-01-01T00:00:00Z", 0.0),
        ("yesterday", None),
        (5, None),
        ("", None),
    ],
)
def test_times_of_the_engine(text: object, seconds: float | None) -> None:
    found = unix_seconds(text)
    assert found == pytest.approx(seconds, abs=1e-5) if seconds is not None else found is None


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_keys = st.sampled_from(["id", "name", "image", "cpu", "memory", "storage", "created_at", "last_access", "files"])


@given(st.dictionaries(_keys, _json, max_size=9))
def test_any_config_is_understood_or_refused_with_a_type(config: dict[str, object]) -> None:
    """F25."""
    data = json.dumps({"version": 1, "config": config}).encode()
    try:
        envelope = decode_envelope(data)
    except (EnvelopeInvalidError, EnvelopeTooNewError):
        return
    assert envelope.memory_bytes >= 0 <= envelope.cpu_count
    assert all(size >= 0 for _, size in envelope.recorded_sizes)
    assert envelope.created_at >= 0.0 <= envelope.last_use_at


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused_with_a_type(data: bytes) -> None:
    """F25."""
    try:
        outcome: object = decode_envelope(data)
    except (EnvelopeInvalidError, EnvelopeTooNewError) as error:
        outcome = error
    assert str(outcome)


def test_a_record_of_the_engines_list_reads_as_an_envelope() -> None:
    record = {"id": "I", "name": "n", "cpu": 1, "created_at": "1970-01-01T00:00:02Z", "last_accessed_at": None}
    assert envelope_of_record(record) == Envelope("I", "n", cpu_count=1, created_at=2.0)
