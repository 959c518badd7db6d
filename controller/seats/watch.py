"""Copies of the sets, of their pods, bound or not, and of the CocoonHibernations that target pods.

Why this exists: plans are made from copies, and woken up by their changes. Pods are followed by the label that every
pod of a set has, because those that are not bound matter here; whatever is decided for the lack of a pod is read
uncached first. What we wrote ourselves is known here before a watch brings it back.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from common.vm_names import pods_that_make
from controller.cocoon_keys import PODS_OF_SETS, SETS_API
from controller.kube.client import KubeClient
from controller.kube.objects import Change, ChangeKind
from controller.kube.reflector import Reflector, ReflectorLimits
from controller.kube.served import ServedProbe
from controller.seats.model import CocoonSet, Pod
from controller.seats.wire import HibernationItem, PodItem, SetItem

# A pod that was made is shown within milliseconds, unless it is none that the watch follows.
_SHOWN_SECONDS: Final = 3.0

Item = TypeVar("Item", SetItem, PodItem)


class SeatWatch:
    """`run` until cancelled; everything else is synchronous. `changed` hears the key of each set to be looked at."""

    def __init__(
        self,
        client: KubeClient,
        changed: Callable[[str], None],
        *,
        limits: ReflectorLimits | None = None,
        sets_served: Callable[[], bool] = lambda: True,
    ) -> None:
        """Nothing is asked before `run`. `sets_served` says whether the API serves CocoonSets at all."""
        self._sets_served = sets_served
        self.sets: Reflector[SetItem] = Reflector(
            client, f"{SETS_API}/cocoonsets", SetItem, self._set_changed, limits=limits
        )
        self.pods: Reflector[PodItem] = Reflector(
            client, "/api/v1/pods", PodItem, self._pod_changed, query=PODS_OF_SETS, limits=limits
        )
        self.hibernations: Reflector[HibernationItem] = Reflector(
            client, f"{SETS_API}/cocoonhibernations", HibernationItem, self._hibernation_changed, limits=limits
        )
        self._probe = ServedProbe(client, self.hibernations, "CocoonHibernations", on_unserved=self._all_changed)
        self._changed = changed
        self._pods_of: dict[str, dict[str, str]] = {}  # key of a set → keys of its pods and whose they are, by UID
        self._targeted: dict[str, set[str]] = {}  # key of a pod → CocoonHibernations
        self._written_sets: dict[str, SetItem] = {}
        self._written_pods: dict[str, PodItem] = {}
        self._deleted: dict[str, str] = {}
        self._created: dict[str, tuple[PodItem | None, float]] = {}

    async def run(self) -> None:
        """Keep the copies."""
        async with asyncio.TaskGroup() as group:
            for reflector in (self.sets, self.pods, self.hibernations):
                group.create_task(reflector.run())
            group.create_task(self._probe.run())

    @property
    def has_synced(self) -> bool:
        """Whether sets and pods are known as a whole."""
        return self.sets.has_synced and self.pods.has_synced

    @property
    def hibernations_known(self) -> bool:
        """Whether it is known which pods are targeted: all are listed, or the API serves no such objects."""
        return self.hibernations.has_synced or self._probe.unserved_since is not None

    def unready_reasons(self) -> list[str]:
        """One sentence for each copy that is missing."""
        return [
            f"{what} for seat release: {reflector.problem or 'not listed yet'}"
            for what, reflector in (("CocoonSets", self.sets), ("pods", self.pods))
            if not reflector.has_synced and (reflector is not self.sets or self._sets_served())
        ]

    def set_keys(self) -> Iterable[str]:
        """Return the keys of all sets."""
        return list(self.sets.items)

    def set_item(self, key: str) -> SetItem | None:
        """Return a set at the newest version we know."""
        return _newer(self.sets.items.get(key), self._written_sets.get(key))

    def cocoon_set(self, key: str) -> CocoonSet | None:
        """The same as plans ask about it."""
        item = self.set_item(key)
        return None if item is None else item.read()

    def older_namesake(self, cs: CocoonSet) -> str:
        """Return the key of an older set whose main VM has the same name, empty without one."""
        age = self._age(cs.key)
        for namespace, pod in pods_that_make(cs.vm_name):
            key = f"{namespace}/{pod.removesuffix('-0')}"
            if key != cs.key and pod.endswith("-0") and key in self.sets.items and self._age(key) < age:
                return key
        return ""

    def _age(self, key: str) -> tuple[str, str]:
        item = self.sets.items.get(key)
        return (item.metadata.creation_timestamp or "") if item is not None else "", key

    def pods_of(self, cs: CocoonSet) -> tuple[Pod, ...]:
        """Return the pods that the set controls, and the one that has the name of its main pod."""
        keys = {key for key, uid in self._pods_of.get(cs.key, {}).items() if uid == cs.uid}
        keys |= {f"{cs.namespace}/{cs.pod_name}"}
        items = [self._pod_item(key) for key in sorted(keys)]
        return tuple(self.pod(item) for item in items if item is not None)

    def _pod_item(self, key: str) -> PodItem | None:
        created, _ = self._created.get(key, (None, 0.0))
        return _newer(self.pods.items.get(key), self._written_pods.get(key)) or created

    def pod(self, item: PodItem) -> Pod:
        """Return a pod as plans ask about it."""
        metadata = item.metadata
        key = f"{metadata.namespace}/{metadata.name}"
        is_deleted = self._deleted.get(key) == metadata.uid
        return item.read(left_to_hibernation=bool(self._targeted.get(key)), is_deleted=is_deleted)

    def wrote_set(self, item: SetItem) -> None:
        """Remember what the API answered to our write or read until the watch shows it."""
        key = f"{item.metadata.namespace}/{item.metadata.name}"
        if _newer(self.sets.items.get(key), item) is item:
            self._written_sets[key] = item

    def wrote_pod(self, item: PodItem) -> None:
        """The same for a pod."""
        key = f"{item.metadata.namespace}/{item.metadata.name}"
        if _newer(self.pods.items.get(key), item) is item:
            self._written_pods[key] = item

    def created_pod(self, cs: CocoonSet, item: PodItem | None) -> None:
        """Remember the main pod that the API made for us until the watch shows it; None: it was there already."""
        key = f"{cs.namespace}/{cs.pod_name}"
        if key not in self.pods.items:
            self._created[key] = item, time.monotonic()

    def is_doubtful(self, cs: CocoonSet) -> bool:
        """Whether the main pod was made, or was there, and the watch has not shown it: only a read tells."""
        item, at = self._created.get(f"{cs.namespace}/{cs.pod_name}", (None, float("inf")))
        return time.monotonic() - at > (_SHOWN_SECONDS if item is not None else -1.0)

    def no_pod(self, cs: CocoonSet) -> None:
        """An uncached read says that there is no main pod."""
        self._created.pop(f"{cs.namespace}/{cs.pod_name}", None)

    def deleted_pod(self, pod: Pod) -> None:
        """Remember that the API took our deletion of a pod until the watch shows it."""
        key = f"{pod.namespace}/{pod.name}"
        item = self.pods.items.get(key)
        if item is not None and item.metadata.uid == pod.uid:
            self._deleted[key] = pod.uid
        self._written_pods.pop(key, None)

    def _set_changed(self, change: Change[SetItem]) -> None:
        _forget_older(self._written_sets, change)
        self._changed(change.key)

    def _pod_changed(self, change: Change[PodItem]) -> None:
        item = change.item
        _forget_older(self._written_pods, change)
        self._created.pop(change.key, None)
        for each in (change.before, item):
            if each is not None and (name := each.owner()[0]):
                self._pods_of.get(f"{each.metadata.namespace}/{name}", {}).pop(change.key, None)
        name, uid = item.owner()
        owner = f"{item.metadata.namespace}/{name}"
        if change.kind is ChangeKind.DELETED:
            self._deleted.pop(change.key, None)
            if not self._pods_of.get(owner, True):
                del self._pods_of[owner]
        elif name:
            self._pods_of.setdefault(owner, {})[change.key] = uid
        keys = {owner} if name else set()
        if change.key.endswith("-0"):
            keys.add(change.key.removesuffix("-0"))
        for key in keys:
            self._changed(key)

    def _hibernation_changed(self, change: Change[HibernationItem]) -> None:
        item = change.item
        for each in (change.before, item):
            if each is not None and each.pod_name:
                self._targeted.get(f"{each.metadata.namespace}/{each.pod_name}", set()).discard(change.key)
        if not item.pod_name and (change.before is None or not change.before.pod_name):
            return
        pod = f"{item.metadata.namespace}/{item.pod_name or (change.before or item).pod_name}"
        if change.kind is not ChangeKind.DELETED and item.pod_name:
            self._targeted.setdefault(pod, set()).add(change.key)
        if pod.endswith("-0"):
            self._changed(pod.removesuffix("-0"))

    def _all_changed(self) -> None:
        for key in self.set_keys():
            self._changed(key)


def _newer(copy: Item | None, written: Item | None) -> Item | None:
    """Return the newer of two versions of one object; a copy that is gone is gone."""
    if copy is None or written is None or copy.metadata.uid != written.metadata.uid:
        return copy
    return written if _version(written) > _version(copy) else copy


def _version(item: SetItem | PodItem) -> int:
    text = item.metadata.resource_version
    return int(text) if text.isdigit() else 0


def _forget_older(written: dict[str, Item], change: Change[Item]) -> None:
    known = written.get(change.key)
    is_deleted = change.kind is ChangeKind.DELETED
    if known is not None and (is_deleted or _version(known) <= _version(change.item)):
        del written[change.key]
