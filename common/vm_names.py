"""Which VM name is a pod's own: the rule that keeps one tenant's pod from reaching another tenant's snapshots.

Why this exists: whoever may create a pod may write any VM name into an annotation. Such a name may protect a snapshot
but never remove one. Agent and controller ask the same question and must never answer it differently.
"""

import re
from collections.abc import Iterator

FORK_PREFIX = "fork-"

_PREFIX = "vk-"
_VM_NAME = re.compile(r"vk-[a-z0-9](?:[-a-z0-9.]{0,244}[a-z0-9])?", re.ASCII)


def is_vm_name(name: str) -> bool:
    """Tell whether a name is one a pod's VM can have."""
    return _VM_NAME.fullmatch(name) is not None


def is_purge_name(name: str) -> bool:
    """Tell whether a purge may name it: a VM's name, or a VM's name with the prefix of its fork baseline."""
    return is_vm_name(name.removeprefix(FORK_PREFIX))


def pod_vm_name(namespace: str, pod_name: str) -> str:
    """Return the name of a pod's VM when no annotation names another.

    `a-b`/`c` and `a`/`b-c` give the same one: a name alone is no proof of owner.
    """
    return f"{_PREFIX}{namespace}-{pod_name}"


def pods_that_make(vm_name: str) -> Iterator[tuple[str, str]]:
    """Yield every namespace and pod name whose VM name is this one: `vk-a-b-c` is that of a/b-c and of a-b/c."""
    if not vm_name.startswith(_PREFIX):
        return
    rest = vm_name[len(_PREFIX) :]
    at = rest.find("-", 1)
    while 0 < at < len(rest) - 1:
        yield rest[:at], rest[at + 1 :]
        at = rest.find("-", at + 1)


def is_own_vm_name(namespace: str, pod_name: str, vm_name: str, trusted_prefixes: tuple[str, ...] = ()) -> bool:
    """Whether a VM name is this pod's own: made from its namespace and name, or with a prefix that is trusted.

    A trusted prefix never makes a VM name of something that is not one, such as an image's name.
    """
    if not namespace or not pod_name or not is_purge_name(vm_name):
        return False
    if vm_name == pod_vm_name(namespace, pod_name):
        return True
    return any(prefix and vm_name.startswith(prefix) for prefix in trusted_prefixes)
