"""Pods as this room needs them: a hundred thousand records of ten fields, found by node and by VM name.

Why this exists: a pod is 4 KB of JSON and a generated model of it 20 KB; we need one owner's worth. The decoder reads
only the wanted keys into a short-lived tree, which the record flattens when it is made. Texts many pods share are
interned; yes-or-no facts are bits of one small integer.

Annotations may hold anything a tenant likes. What is not a text counts as unset, and what is longer than any name is
cut, still too long to be one.
"""

import re
import sys
from typing import Final

import msgspec

from common.snapshot_words import Owner
from common.vm_names import pod_vm_name
from controller.deletion.model import LivePod, SeenDeletion
from controller.deletion.pod_wire import (
    WireAnnotations,
    WireMetadata,
    WireSpec,
    WireStatus,
    ephemeral_bytes,
    is_disruption_target,
    is_finished,
    is_running,
    set_of,
)
from controller.deletion.words import is_true, last_version

MANAGED: Final = 1
KEEP: Final = 2
RESTORES: Final = 4
DISRUPTED: Final = 8
TERMINATING: Final = 16
RUNNING: Final = 32
LIVE_SEEN: Final = 64
ODD_NAME: Final = 128
ODD_VALUE: Final = 256
"""Bits of `PodRecord.bits`; LIVE_SEEN: a version without deletion timestamp was seen; ODD_NAME: the annotated VM name
is none that any store could hold; ODD_VALUE: an annotation that decides is neither true nor false."""

_OWNER_BITS: Final = MANAGED | KEEP
_CLAIM_BITS: Final = RESTORES | RUNNING
# One more than the longest name there is would do; what is cut stays impossible.
_LONGEST_TEXT: Final = 300
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,252}", re.ASCII)


class PodRecord(
    msgspec.Struct,
    gc=False,
    eq=False,
    # The keys of the flat fields are ones no API server sends.
    rename={
        "wire_metadata": "metadata",
        "wire_spec": "spec",
        "wire_status": "status",
        **{
            field: f"~{field}"
            for field in (
                "name", "namespace", "uid", "resource_version", "node", "own_vm_name", "vm_id", "set_name", "set_uid",
                "ephemeral_bytes", "bits",
            )
        },
    },
):  # fmt: skip
    """One pod. Texts are empty when unset; `own_vm_name` is set only when it is not the one made from the pod's name.

    Two records are equal when they are the same object.
    """

    wire_metadata: WireMetadata | None = None
    wire_spec: WireSpec | None = None
    wire_status: WireStatus | None = None
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    node: str = ""
    own_vm_name: str = ""
    vm_id: str = ""
    set_name: str = ""
    set_uid: str = ""
    ephemeral_bytes: int = 0
    bits: int = 0

    def __post_init__(self) -> None:
        """Flatten what was decoded and let the tree go."""
        metadata, spec, status = self.wire_metadata, self.wire_spec, self.wire_status
        bits = LIVE_SEEN
        if metadata is not None:
            self.name, self.uid, self.resource_version = metadata.name, metadata.uid, metadata.resource_version
            self.namespace = sys.intern(metadata.namespace)
            if metadata.deletion_timestamp:
                bits = TERMINATING
            if metadata.annotations is not None:
                bits |= self._take_annotations(metadata.annotations)
            if metadata.owner_references is not None:
                self.set_name, self.set_uid = set_of(metadata.owner_references)
        if spec is not None:
            self.node = sys.intern(spec.node_name or "")
            self.ephemeral_bytes = ephemeral_bytes(spec)
        if status is not None:
            if is_disruption_target(status):
                bits |= DISRUPTED
            if is_running(status.container_statuses):
                bits |= RUNNING
            if is_finished(status.phase):
                # What the scheduler does not take off, the agent must not add back for the VM's overlay.
                self.ephemeral_bytes = 0
        self.bits = bits
        self.wire_metadata = self.wire_spec = self.wire_status = None

    def _take_annotations(self, annotations: WireAnnotations) -> int:
        bits = 0
        if annotations.vm_name is not None:
            bits |= self._take_vm_name(annotations.vm_name)
        if annotations.vm_id is not None:
            self.vm_id = _text(annotations.vm_id)
        if annotations.managed is not None:
            bits |= _yes(annotations.managed, MANAGED)
        if annotations.keep is not None:
            bits |= _yes(annotations.keep, KEEP)
        if annotations.restores is not None:
            bits |= _yes(annotations.restores, RESTORES)
        return bits

    def _take_vm_name(self, value: object) -> int:
        vm_name = _text(value)
        if vm_name and vm_name != pod_vm_name(self.namespace, self.name):
            self.own_vm_name = vm_name
        is_odd = not isinstance(value, str) or (vm_name and not _NAME.fullmatch(vm_name))
        return ODD_NAME if is_odd else 0

    @property
    def metadata(self) -> "PodRecord":
        """What a reflector reads: name, namespace, uid and resource_version."""
        return self

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def vm_name(self) -> str:
        """The VM this pod claims."""
        return self.own_vm_name or pod_vm_name(self.namespace, self.name)

    def has(self, bit: int) -> bool:
        """Whether this bit is set."""
        return bool(self.bits & bit)

    def follow(self, before: "PodRecord | None", *, gapless: bool = True) -> None:
        """Take over what the version before said of a disruption, so that only the version that counts decides.

        Without `gapless` versions in between may have been missed, among them the last one without deletion timestamp:
        then none such was seen.
        """
        if before is None or before.uid != self.uid:
            return
        live_seen = before.bits & LIVE_SEEN if gapless else 0
        if not (before.bits | self.bits) & DISRUPTED:
            # As ever: no version said anything of a disruption.
            self.bits |= live_seen
            return
        said = last_version(
            SeenDeletion(before.has(KEEP), before.has(DISRUPTED)),
            live_seen=bool(live_seen),
            keep=self.has(KEEP),
            disrupted=self.has(DISRUPTED),
            terminating=self.has(TERMINATING),
        )
        self.bits = (self.bits & ~DISRUPTED) | (DISRUPTED if said.disrupted else 0) | live_seen

    def said(self) -> SeenDeletion:
        """What this version says, should it be the last one."""
        return SeenDeletion(self.has(KEEP), self.has(DISRUPTED))

    def owner(self) -> Owner:
        """Return the pod as an owner."""
        return Owner(
            pod_uid=self.uid,
            namespace=self.namespace,
            pod_name=self.name,
            vm_name=self.vm_name,
            managed=self.has(MANAGED),
            set_name=self.set_name,
            set_uid=self.set_uid,
            vm_id=self.vm_id,
            ephemeral_storage_request_bytes=self.ephemeral_bytes,
            keep_on_delete=self.has(KEEP),
        )

    def live(self) -> LivePod:
        """Return the pod as a decision asks about it."""
        return LivePod(
            self.uid,
            self.namespace,
            self.name,
            self.node,
            self.vm_name,
            restores=self.has(RESTORES),
            vm_live=bool(self.vm_id) and self.has(RUNNING),
        )

    def same_owner(self, other: "PodRecord") -> bool:
        """Whether agents would be told the same about both."""
        return (
            self.uid == other.uid
            and (self.bits ^ other.bits) & _OWNER_BITS == 0
            and self.vm_id == other.vm_id
            and self.own_vm_name == other.own_vm_name
            and self.set_uid == other.set_uid
            and self.set_name == other.set_name
            and self.ephemeral_bytes == other.ephemeral_bytes
            and self.node == other.node
        )

    def same_claim(self, other: "PodRecord") -> bool:
        """Whether both say the same about copies of their VM on other nodes, as `live` tells it."""
        return (
            self.uid == other.uid
            and (self.bits ^ other.bits) & _CLAIM_BITS == 0
            and self.vm_id == other.vm_id
            and self.own_vm_name == other.own_vm_name
            and self.node == other.node
        )


def _yes(value: object, bit: int) -> int:
    if is_true(value):
        return bit
    return 0 if value in ("false", "") else ODD_VALUE


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
