"""An owner as a message of the snapshot API, and back; agent and controller must read every field alike."""

import sys

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.snapshot_words import Owner


def owner_message(owner: Owner) -> pb.Owner:
    """Return an owner's message."""
    return pb.Owner(
        pod_uid=owner.pod_uid,
        namespace=owner.namespace,
        pod_name=owner.pod_name,
        vm_name=owner.vm_name,
        managed=owner.managed,
        set_name=owner.set_name,
        set_uid=owner.set_uid,
        vm_id=owner.vm_id,
        ephemeral_storage_request_bytes=owner.ephemeral_storage_request_bytes,
        keep_on_delete=owner.keep_on_delete,
    )


def owner_of(message: pb.Owner) -> Owner:
    """Return the owner a message names, with one copy in memory of each text that many owners have in common.

    A request for less than nothing counts as none.
    """
    return Owner(
        pod_uid=message.pod_uid,
        namespace=sys.intern(message.namespace),
        pod_name=message.pod_name,
        vm_name=message.vm_name,
        managed=message.managed,
        set_name=sys.intern(message.set_name),
        set_uid=sys.intern(message.set_uid),
        vm_id=message.vm_id,
        ephemeral_storage_request_bytes=max(0, message.ephemeral_storage_request_bytes),
        keep_on_delete=message.keep_on_delete,
    )
