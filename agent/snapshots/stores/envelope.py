"""The metadata of a snapshot as the engine exports it, decoded tolerantly and judged.

`snapshot.json` is `{"version": 1, "config": {"id", "name", "image", "cpu", "memory", "storage", "hypervisor", …}}`.
Unknown keys are ignored, a field of the wrong type is a problem and not a verdict: only what the contract calls INVALID
is INVALID. The envelope records lengths of data files in three ways, and a file that is there and shorter than one of
them has been cut off:

* `files`, in the envelope or its `config`: `[{"name", "size"}]`, or a map of name to size;
* `memory`, for the memory images `memory-ranges` (cloud-hypervisor) and `mem` (firecracker), which hold all of it;
* `storage`, for the raw overlay `cow.raw`, which is as long as the disk it stands for.

The hypervisors count memory in MiB, so less than one MiB is not called a difference.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

MAX_ENVELOPE_BYTES = 1 << 20
MAX_ID_CHARACTERS = 128
MAX_TEXT_CHARACTERS = 512
# Numbers beyond these could not be told to anybody: they travel as 32 and 64 bits.
MAX_CPUS = 1 << 31
MAX_BYTES = 1 << 63
_MIB = 1 << 20
_LAST_USE_KEYS = ("last_accessed_at", "last_access_at", "last_access", "last_used_at")


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """What a snapshot's metadata says: empty or 0 for what it does not. `recorded_sizes` are bytes by file name."""

    snapshot_id: str = msgspec.field(default="", name="id")
    name: str = ""
    image: str = ""
    hypervisor: str = ""
    cpu_count: int = msgspec.field(default=0, name="cpu")
    memory_bytes: int = msgspec.field(default=0, name="memory")
    storage_bytes: int = msgspec.field(default=0, name="storage")
    # Nothing below is decoded by this struct: any value of these keys leads to the lenient way.
    created_at: float = 0.0
    last_use_at: float = msgspec.field(default=0.0, name="last_accessed_at")
    recorded_sizes: tuple[tuple[str, int], ...] = msgspec.field(default=(), name="files")
    problems: tuple[str, ...] = ()


class EnvelopeInvalidError(ValueError):
    """The metadata was read completely and is not a snapshot's."""


class EnvelopeTooNewError(ValueError):
    """The metadata has a version this program does not know: a problem, not a verdict."""


class _PlainEnvelope(msgspec.Struct, gc=False):
    version: int
    config: Envelope
    files: msgspec.Raw | None = None


_decode_plain = msgspec.json.Decoder(_PlainEnvelope).decode
_decode_anything = msgspec.json.Decoder().decode


def decode_envelope(data: bytes) -> Envelope:
    """Decode `snapshot.json`. Raises EnvelopeInvalidError or EnvelopeTooNewError with what is wrong, for people."""
    try:
        plain = _decode_plain(data)
    except msgspec.MsgspecError:
        return _decode_leniently(data)
    config = plain.config
    is_plain = (
        plain.version == 1
        and plain.files is None
        and config.created_at == config.last_use_at == 0.0
        and not config.recorded_sizes
        and not config.problems
        and config.name
        and 0 < len(config.snapshot_id) <= MAX_ID_CHARACTERS
        and len(data) <= MAX_TEXT_CHARACTERS * 4
        and 0 <= config.cpu_count < MAX_CPUS
        and 0 <= config.memory_bytes < MAX_BYTES
        and 0 <= config.storage_bytes < MAX_BYTES
    )
    return config if is_plain else _decode_leniently(data)


def envelope_of_record(record: Mapping[str, Any]) -> Envelope:
    """Turn the fields of one snapshot, of an envelope or of the engine's list, into an Envelope."""
    problems: list[str] = []
    fields = _Fields(record, problems)
    snapshot_id = fields.text("id")
    if not snapshot_id or len(snapshot_id) > MAX_ID_CHARACTERS:
        problems.append("the metadata has no id" if not snapshot_id else "the metadata's id is too long for one")
        snapshot_id = ""
    return Envelope(
        snapshot_id=snapshot_id,
        name=fields.text("name"),
        image=fields.text("image"),
        hypervisor=fields.text("hypervisor"),
        cpu_count=fields.count("cpu", MAX_CPUS),
        memory_bytes=fields.count("memory", MAX_BYTES),
        storage_bytes=fields.count("storage", MAX_BYTES),
        created_at=fields.moment("created_at"),
        last_use_at=max(fields.moment(key) for key in _LAST_USE_KEYS),
        recorded_sizes=_recorded_sizes(record.get("files"), problems),
        problems=tuple(dict.fromkeys(problems)),
    )


def shortened_files(envelope: Envelope, sizes: Mapping[str, int]) -> list[str]:
    """Return a problem for each file that is shorter than recorded, and for each recorded file that is missing.

    `sizes` are the lengths of the data files that are there, in bytes.
    """
    problems = []
    for name, recorded in envelope.recorded_sizes:
        present = sizes.get(name)
        if present is None:
            problems.append(f"{name[:100]!r} is recorded with {recorded} bytes and is missing")
        elif present < recorded:
            problems.append(f"{name[:100]!r} has {present} of {recorded} recorded bytes")
    for name, recorded in (
        ("memory-ranges", envelope.memory_bytes),
        ("mem", envelope.memory_bytes),
        ("cow.raw", envelope.storage_bytes),
    ):
        present = sizes.get(name, recorded)
        if present + _MIB <= recorded:
            problems.append(f"{name} has {present} of {recorded} recorded bytes")
    return problems


class _Fields:
    """Fields of a decoded object; one of the wrong type counts as absent and adds a problem."""

    def __init__(self, record: Mapping[str, Any], problems: list[str]) -> None:
        self._record = record
        self._problems = problems

    def text(self, key: str) -> str:
        value = self._record.get(key)
        if value is None or isinstance(value, str):
            return (value or "")[:MAX_TEXT_CHARACTERS]
        self._problems.append(f"the metadata's {key} is not a text")
        return ""

    def count(self, key: str, limit: int) -> int:
        value = self._record.get(key)
        if value is None:
            return 0
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit:
            return value
        self._problems.append(f"the metadata's {key} is not a count")
        return 0

    def moment(self, key: str) -> float:
        value = self._record.get(key)
        if not value:
            return 0.0
        seconds = unix_seconds(value)
        if seconds is None:
            self._problems.append(f"the metadata's {key} is not a time")
            return 0.0
        return seconds


def unix_seconds(text: object) -> float | None:
    """Return the Unix seconds of an RFC 3339 time of any precision, or None. Times before 1970 count as unknown: 0."""
    if not isinstance(text, str):
        return None
    try:
        moment = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(moment.timestamp(), 0.0)


def _decode_leniently(data: bytes) -> Envelope:
    if not data.strip():
        raise EnvelopeInvalidError("snapshot.json is empty")
    try:
        decoded = _decode_anything(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise EnvelopeInvalidError(f"snapshot.json is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise EnvelopeInvalidError("snapshot.json is not a JSON object")
    version, config = decoded.get("version"), decoded.get("config")
    if isinstance(version, int) and version > 1:
        raise EnvelopeTooNewError(f"snapshot.json has version {version}; this agent knows version 1")
    if version is not True and version == 1 and isinstance(config, dict):
        merged = config if "files" in config else {**config, "files": decoded.get("files")}
        return envelope_of_record(merged)
    raise EnvelopeInvalidError("snapshot.json has no version 1 with a config")


def _recorded_sizes(files: object, problems: list[str]) -> tuple[tuple[str, int], ...]:
    if files is None:
        return ()
    pairs: list[tuple[object, object]]
    if isinstance(files, dict):
        pairs = list(files.items())
    elif isinstance(files, list) and all(isinstance(item, dict) for item in files):
        pairs = [(item.get("name"), item.get("size")) for item in files]
    else:
        problems.append("the metadata's files are neither a list nor a map of sizes")
        return ()
    sizes = [
        (name, size)
        for name, size in pairs
        if isinstance(name, str) and isinstance(size, int) and 0 <= size < MAX_BYTES
    ]
    if len(sizes) != len(pairs):
        problems.append("the metadata's files are not all names with sizes")
    return tuple(sizes)
