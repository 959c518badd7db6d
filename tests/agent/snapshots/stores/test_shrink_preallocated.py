"""Space that was reserved and never written comes back in steps too: it reads as a hole and is none."""

import os
from pathlib import Path

import pytest

from agent.snapshots.stores import shrink

MIB = 1 << 20


@pytest.mark.parametrize(
    ("length_bytes", "reserved"),
    [(8 * MIB, [(0, 8 * MIB)]), (64 * MIB, [(0, 3 * MIB), (40 * MIB, 4 * MIB)])],
    ids=["all of it", "two islands"],
)
def test_a_preallocated_file_is_shortened_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length_bytes: int, reserved: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(shrink, "STEP_BYTES", MIB)
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(length_bytes)
        for start, count in reserved:
            os.posix_fallocate(file.fileno(), start, count)
        if not shrink._occupies_space_behind(file.fileno(), reserved[-1][0]):
            pytest.skip("this file system does not tell reserved space from a hole (a memory file system does not)")
    allocated = image.stat().st_blocks * 512
    freed: list[int] = []

    def step_done(count: int) -> bool:
        freed.append(count)
        return True

    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        gone = shrink.remove_file(directory, "image", step_done=step_done)
    finally:
        os.close(directory)

    assert gone
    assert not image.exists()
    assert sum(freed) == allocated
    # A file system gives back whole blocks and what indexes them, hence a little more than asked for.
    assert max(freed) <= MIB + 64 * 1024
