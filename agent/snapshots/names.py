"""Which names exist: snapshots', VMs', and who owns what by name.

Names come from pods, people and directories, so each is checked here before any file or process is touched. Prefixes
decide nothing: a VM owns the two names `owned_names` gives it and no others.
"""

import re

from agent.snapshots.errors import InvalidNameError, quoted
from common.vm_names import FORK_PREFIX, is_purge_name, is_vm_name

MAX_NAME_CHARACTERS = 253
_STORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_ENGINE_NAME_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]*", re.ASCII)


def is_store_name(name: str) -> bool:
    """Tell whether a name may stand in the directory store, and so may be removed from any store."""
    return _STORE_NAME.fullmatch(name) is not None


def is_readable_name(name: str) -> bool:
    """Tell whether a name may be asked for: a store name, or an engine's name with `/` or `:` in it."""
    if not name or len(name) > MAX_NAME_CHARACTERS:
        return False
    return all(_ENGINE_NAME_COMPONENT.fullmatch(component) for component in name.split("/"))


def require_store_name(name: str, *, field: str = "name") -> str:
    """Return the name, or raise InvalidNameError."""
    if not is_store_name(name):
        raise InvalidNameError(f"{field} {quoted(name)} is not a snapshot name that may be changed", field=field)
    return name


def require_readable_name(name: str, *, field: str = "name") -> str:
    """Return the name, or raise InvalidNameError."""
    if not is_readable_name(name):
        raise InvalidNameError(f"{field} {quoted(name)} is not a snapshot name", field=field)
    return name


def require_purge_name(name: str, *, field: str = "owner.vm_name") -> str:
    """Return the name, or raise InvalidNameError."""
    if not is_purge_name(name):
        raise InvalidNameError(
            f"{field} {quoted(name)} is not a VM name: expected vk-<namespace>-<pod>, at most 253 characters",
            field=field,
        )
    return name


def owned_names(vm_name: str) -> tuple[str, str]:
    """Return the names of the snapshots a VM owns: its hibernate image, and the baseline its forks clone."""
    return vm_name, FORK_PREFIX + vm_name


def owning_vm(snapshot_name: str) -> str:
    """Return the VM whose snapshot this name is, or an empty string for a shared image or somebody's own."""
    vm_name = snapshot_name.removeprefix(FORK_PREFIX)
    return vm_name if is_vm_name(vm_name) else ""
