"""What running VMs' overlays add back to the available storage."""

import os
from pathlib import Path

import pytest

from agent.resources.overlays import KnownVm, overlay_bytes

BLOCK = 64 * 1024


def overlay(run_dir: Path, vm_id: str, blocks: int, hypervisor: str = "cloudhypervisor", name: str = "cow.raw") -> None:
    path = run_dir / hypervisor / vm_id / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * blocks * BLOCK)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    assert path.stat().st_blocks * 512 == blocks * BLOCK


@pytest.mark.parametrize(
    ("vms", "expected_blocks"),
    [
        ([], 0),
        ([KnownVm("vm1", 10 * BLOCK)], 4),
        ([KnownVm("vm1", 3 * BLOCK)], 3),
        ([KnownVm("vm1", 0)], 0),
        ([KnownVm("vm1", -5)], 0),
        ([KnownVm("vm2", 10 * BLOCK)], 2),
        ([KnownVm("vm1", 10 * BLOCK), KnownVm("vm2", BLOCK)], 5),
        ([KnownVm("vm1", 10 * BLOCK), KnownVm("vm1", 2 * BLOCK)], 2),
        ([KnownVm("unknown", BLOCK)], 0),
        ([KnownVm("", BLOCK), KnownVm("..", BLOCK), KnownVm("../firecracker/vm2", BLOCK), KnownVm("a\0b", BLOCK)], 0),
    ],
)
def test_the_smaller_of_overlay_and_request_counts(tmp_path: Path, vms: list[KnownVm], expected_blocks: int) -> None:
    """F26: an id that would lead elsewhere counts nothing."""
    overlay(tmp_path, "vm1", 4)
    overlay(tmp_path, "vm2", 2, "firecracker", "overlay.qcow2")
    assert overlay_bytes(str(tmp_path), vms, tmp_path.stat().st_dev) == expected_blocks * BLOCK


def test_an_overlay_on_another_file_system_counts_nothing(tmp_path: Path) -> None:
    overlay(tmp_path, "vm1", 4)
    assert overlay_bytes(str(tmp_path), [KnownVm("vm1", BLOCK)], tmp_path.stat().st_dev + 1) == 0


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """F26: the overlay itself must be there."""
    overlay(tmp_path, "vm1", 4)
    linked = tmp_path / "cloudhypervisor/vm2/cow.raw"
    linked.parent.mkdir()
    linked.symlink_to(tmp_path / "cloudhypervisor/vm1/cow.raw")
    assert overlay_bytes(str(tmp_path), [KnownVm("vm2", 10 * BLOCK)], tmp_path.stat().st_dev) == 0


def test_without_a_run_directory_nothing_is_added(tmp_path: Path) -> None:
    assert overlay_bytes(str(tmp_path / "gone"), [KnownVm("vm1", BLOCK)], tmp_path.stat().st_dev) == 0
