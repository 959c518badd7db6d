"""The keys of cocoonstack on pods and CocoonSets, and where the sets are.

Why this exists: deciding about snapshots and releasing seats read the same keys, and a key that one of them spelled
otherwise would be a flag that nobody sees.
"""

from typing import Final
from urllib.parse import quote

SET_GROUP: Final = "cocoonset.cocoonstack.io"
SET_KIND: Final = "CocoonSet"
SETS_API: Final = f"/apis/{SET_GROUP}/v1"
SET_PREFIX: Final = f"{SET_GROUP}/"
SET_NAME: Final = f"{SET_PREFIX}name"
MANAGED: Final = f"{SET_PREFIX}managed"
GENERATION: Final = f"{SET_PREFIX}generation"
STASH: Final = f"{SET_PREFIX}hibernated-on-node"
DISCARD: Final = f"{SET_PREFIX}discard-hibernate-snapshot"

VM_PREFIX: Final = "vm.cocoonstack.io/"
VM_NAME: Final = f"{VM_PREFIX}name"
VM_ID: Final = f"{VM_PREFIX}id"
HIBERNATE: Final = f"{VM_PREFIX}hibernate"
KEEP: Final = f"{VM_PREFIX}keep-snapshot-on-delete"
RESTORE: Final = f"{VM_PREFIX}restore-from-hibernate"

PODS_OF_SETS: Final = {"labelSelector": SET_NAME}
"""Query for the pods of all sets, bound or not."""


def set_path(namespace: str, name: str) -> str:
    """Return the path of a set."""
    return f"{SETS_API}/namespaces/{quote(namespace, safe='')}/cocoonsets/{quote(name, safe='')}"
