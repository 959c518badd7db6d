"""Which VM name is a pod's own: the rule that keeps one tenant's pod from reaching another tenant's snapshots.

Why this exists: whoever may create a pod may write any VM name into an annotation. Such a name may protect a snapshot
but never remove one.
"""

import re
from collections.abc import Iterator

# The agent purges nothing else; asking for it would only be refused.
_PURGE_NAME = re.compile(r"(?:fork-)?vk-[a-z0-9](?:[-a-z0-9.]{0,244}[a-z0-9])?", re.ASCII)
_PREFIX = "vk-"


def pod_vm_name(namespace: str, pod_name: str) -> str:
    """Return the name of a pod's VM when no annotation names another. Two different pods can have one name."""
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


def is_foreign_name(namespace: str, pod_name: str, vm_name: str, trusted_prefixes: tuple[str, ...] = ()) -> bool:
    """Whether a VM name is not this pod's own: neither made from its name nor with a prefix that is trusted.

    A trusted prefix never makes a VM name of something that is not one, such as an image's name.
    """
    if not namespace or not pod_name or _PURGE_NAME.fullmatch(vm_name) is None:
        return True
    if vm_name == pod_vm_name(namespace, pod_name):
        return False
    return not any(prefix and vm_name.startswith(prefix) for prefix in trusted_prefixes)
