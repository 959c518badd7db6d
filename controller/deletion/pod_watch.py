"""The copy of all bound pods, and uncached reads of single ones.

Why this exists: the events of a watch are only hints, with one exception: the object of a DELETED event is the last
state of a pod there is. Here each change is turned into the two things others care about: a node whose owners changed,
and a pod that is gone, with what its last version said.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Protocol
from urllib.parse import quote

import msgspec

from common.logging import fields
from common.snapshot_words import Owner
from controller.deletion.metrics import ODD_PODS
from controller.deletion.model import NamesakeFacts
from controller.deletion.pod_index import PodIndex
from controller.deletion.pods import ODD_NAME, ODD_VALUE, TERMINATING, PodRecord
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, NotFound
from controller.kube.objects import Change, ChangeKind
from controller.kube.reflector import Reflector, ReflectorLimits

log = logging.getLogger(__name__)

# Pods are seen from when they are bound. No other filter: with a label selector, removing the label looks like a
# deletion.
_BOUND = {"fieldSelector": "spec.nodeName!="}


_DELETED = ChangeKind.DELETED
_ODD = {ODD_NAME: "vm name", ODD_VALUE: "value"}
_ANY_ODD = ODD_NAME | ODD_VALUE


class PodListener(Protocol):
    """Who acts on changes; no call blocks or raises."""

    def owners_changed(self, node: str) -> None:
        """What the agent of this node should be told is not what it was."""

    def claim_changed(self, record: PodRecord) -> None:
        """What a pod says about copies of its VM on other nodes is not what it was; it may be gone."""

    def pod_deleted(self, record: PodRecord) -> None:
        """A watch delivered the deletion of a bound pod, with its deletion timestamp; this is its last version.

        That the node's owners changed is said by this.
        """

    def pod_lost(self, record: PodRecord) -> None:
        """A bound pod is gone and nobody saw its last version; this is the one before."""


class PodWatch:
    """`run` until cancelled; everything else is synchronous and read from the copy, except `read`."""

    def __init__(self, client: KubeClient, *, limits: ReflectorLimits | None = None) -> None:
        """Nothing is asked before `run`; `tell` says who is told of changes."""
        self.reflector: Reflector[PodRecord] = Reflector(
            client, "/api/v1/pods", PodRecord, self._changed, query=_BOUND, limits=limits
        )
        self.index = PodIndex(self.reflector.items.get)
        self._client = client
        self._listener: PodListener | None = None
        self._decode = msgspec.json.Decoder(PodRecord).decode

    @property
    def has_synced(self) -> bool:
        """Whether the copy is whole."""
        return self.reflector.has_synced

    @property
    def is_current(self) -> bool:
        """Whether the copy is whole and list and watch work."""
        return self.reflector.has_synced and not self.reflector.problem

    def tell(self, listener: PodListener) -> None:
        """Tell this listener of every change from now on."""
        self._listener = listener

    async def run(self) -> None:
        """Keep the copy."""
        await self.reflector.run()

    def on_node(self, node: str) -> Iterable[PodRecord]:
        """Return the pods bound to a node; do not keep it across an await."""
        return self.index.on_node(node)

    def claimants(self, vm_name: str) -> Iterator[PodRecord]:
        """Yield every bound pod that claims this VM."""
        return self.index.claimants(vm_name)

    async def read(self, owner: Owner) -> NamesakeFacts:
        """Ask the API itself for the pod of this namespace and name. Raises KubeError when it does not answer."""
        path = f"/api/v1/namespaces/{quote(owner.namespace, safe='')}/pods/{quote(owner.pod_name, safe='')}"
        try:
            record = self._decode(await self._client.get_bytes(path))
        except NotFound as error:
            if error.object_name == owner.pod_name:
                return NamesakeFacts(confirmed=True)
            raise
        except msgspec.DecodeError as error:
            raise KubeError(f"the pod cannot be read: {error}", reason="InvalidAnswer", request=path) from error
        if (record.namespace, record.name) != (owner.namespace, owner.pod_name):
            raise KubeError("the answer is about another pod", reason="InvalidAnswer", request=path)
        return NamesakeFacts(confirmed=True, pod=record.live())

    def _changed(self, change: Change[PodRecord]) -> None:
        before, item, seen, listener = change.before, change.item, change.seen, self._listener
        is_deleted = change.kind is _DELETED
        if before is not None and (seen or not is_deleted):
            item.follow(before, gapless=seen)
        self.index.take(before, None if is_deleted else item)
        if not is_deleted and item.bits & _ANY_ODD:
            _tell_odd(item, before)
        if listener is None:
            return
        # Without a deletion timestamp a deleted object is no last version: whoever asks reads the pod.
        is_last = is_deleted and seen and item.has(TERMINATING) and bool(item.node)
        if is_last:
            listener.pod_deleted(item)
        elif is_deleted and item.node:
            listener.pod_lost(item)
        if not is_last and (is_deleted or before is None or not item.same_owner(before)):
            listener.owners_changed(item.node)
        if is_deleted or before is None or not item.same_claim(before):
            listener.claim_changed(item)


def _tell_odd(item: PodRecord, before: PodRecord | None) -> None:
    """Say once what cannot be used as it is: it counts as unset, and somebody meant something by it."""
    known = before.bits if before is not None and before.uid == item.uid else 0
    for bit, what in _ODD.items():
        if item.bits & bit and not known & bit:
            ODD_PODS.labels(what).inc()
            log.warning(
                "pod with an odd annotation", extra=fields(pod=item.key, uid=item.uid, node=item.node, odd=what)
            )
