"""The records of pods found by node and by VM name, kept in step with each change.

Why this exists: the copy finds a pod by its name. Agents are told by node, and a snapshot's claimants are asked by VM.
"""

from collections.abc import Callable, Iterable, Iterator

from common.vm_names import pods_that_make
from controller.deletion.pods import PodRecord


class PodIndex:
    """Finds the records of a reflector's copy by node and by VM name; `take` keeps it in step with each change."""

    def __init__(self, find: Callable[[str], PodRecord | None]) -> None:
        """`find` looks a record up by `namespace/name`."""
        self._find = find
        # Records in dictionaries as keys: sets without the chance in their order.
        self._by_node: dict[str, dict[PodRecord, None]] = {}
        self._by_own_vm_name: dict[str, dict[PodRecord, None]] = {}

    def take(self, before: PodRecord | None, after: PodRecord | None) -> None:
        """Put `after` in the place of `before`; None for a pod that was not, or is no longer, there."""
        if before is not None:
            _remove(self._by_node, before.node, before)
            if before.own_vm_name:
                _remove(self._by_own_vm_name, before.own_vm_name, before)
        if after is not None:
            _add(self._by_node, after.node, after)
            if after.own_vm_name:
                _add(self._by_own_vm_name, after.own_vm_name, after)

    def on_node(self, node: str) -> Iterable[PodRecord]:
        """Return the pods bound to a node; do not keep it across an await."""
        return self._by_node.get(node, ())

    def nodes(self) -> Iterable[str]:
        """Return the nodes that pods are bound to."""
        return self._by_node.keys()

    def claimants(self, vm_name: str) -> Iterator[PodRecord]:
        """Yield every pod that claims this VM."""
        # Names made from pods' own names need no index: the few pods that make this one can be asked for.
        for namespace, name in pods_that_make(vm_name):
            record = self._find(f"{namespace}/{name}")
            if record is not None and not record.own_vm_name:
                yield record
        yield from self._by_own_vm_name.get(vm_name, ())


def _add(index: dict[str, dict[PodRecord, None]], key: str, record: PodRecord) -> None:
    found = index.get(key)
    if found is not None:
        found[record] = None
    elif key:
        index[key] = {record: None}


def _remove(index: dict[str, dict[PodRecord, None]], key: str, record: PodRecord) -> None:
    found = index.get(key)
    if found is not None:
        found.pop(record, None)
        if not found:
            del index[key]
