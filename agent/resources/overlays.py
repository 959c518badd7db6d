"""What the disk overlays of running VMs occupy, as far as the scheduler has already counted it.

Why this exists: a VM's pod requests ephemeral-storage, and the scheduler subtracts that request from the Node. The
overlay's blocks are missing from the file system's free space as well, so without adding them back the same bytes are
taken off twice. Only what a pod requested is added back, and only on the file system that is measured.
"""

import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

_HYPERVISORS = ("cloudhypervisor", "firecracker")
_OVERLAYS = ("cow.raw", "overlay.qcow2")
_BLOCK_BYTES = 512
# An id comes from a pod's annotation: it must not lead anywhere but to one directory below the run directory.
_VM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class KnownVm(NamedTuple):
    """A VM of an owner of the last sync: the engine's id, and what its pod requests of ephemeral-storage."""

    vm_id: str
    request_bytes: int


def overlay_bytes(run_dir: str, vms: Iterable[KnownVm], device: int) -> int:
    """Return the sum of min(allocated overlay, request) over `vms`, in bytes, on the given device only.

    An overlay that cannot be looked at counts nothing: too little is slower, too much would be sold twice.
    """
    requests: dict[str, int] = {}
    for vm in vms:
        if _VM_ID.fullmatch(vm.vm_id):
            requests[vm.vm_id] = min(max(0, vm.request_bytes), requests.get(vm.vm_id, vm.request_bytes))
    return sum(min(_allocated(run_dir, vm_id, device), request) for vm_id, request in requests.items() if request > 0)


def _allocated(run_dir: str, vm_id: str, device: int) -> int:
    total = 0
    for hypervisor in _HYPERVISORS:
        for overlay in _OVERLAYS:
            try:
                status = os.lstat(f"{run_dir}/{hypervisor}/{vm_id}/{overlay}")
            except OSError:
                continue
            if status.st_dev == device and stat.S_ISREG(status.st_mode):
                total += status.st_blocks * _BLOCK_BYTES
    return total
