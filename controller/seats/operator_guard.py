"""Looks for a running cocoon-operator, which releases seats itself.

Why this exists: two programs that put the same VMs to sleep and wake them would delete each other's pods. The operator
elects its leader on a Lease; one that is held and was renewed lately says that it runs. A clock that is wrong does not
hide it: a Lease that looks old is looked at again, and one that was renewed in between is not.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from controller.kube.client import KubeClient
from controller.kube.objects import Metadata, list_page_type

OPERATOR_LEASE: Final = "cocoon-operator.cocoonset.cocoonstack.io"
_LEASES: Final = "/apis/coordination.k8s.io/v1/leases"
_SLACK_SECONDS: Final = 5.0
_SECOND_LOOK_SECONDS: Final = 5.0


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct):
    metadata: Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def text(self) -> str:
        """The Lease for people."""
        return f"Lease {self.metadata.namespace}/{self.metadata.name} held by {self.spec.holder_identity}"


async def running_operator(
    client: KubeClient,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    second_look_seconds: float = _SECOND_LOOK_SECONDS,
) -> str:
    """Return the Lease by which a cocoon-operator shows that it runs, for people; empty when none does.

    Raises KubeError when the Leases cannot be read.
    """
    found = await _held(client)
    for lease in found:
        if _is_fresh(lease, now()):
            return lease.text
    if not found:
        return ""
    await asyncio.sleep(second_look_seconds)
    versions = {each.metadata.uid: each.metadata.resource_version for each in found}
    renewed = [
        each for each in await _held(client) if versions.get(each.metadata.uid) != each.metadata.resource_version
    ]
    return renewed[0].text if renewed else ""


async def _held(client: KubeClient) -> list[_Lease]:
    """Return the operator's Leases that somebody holds, of whatever namespace it runs in."""
    body = await client.get_bytes(_LEASES, {"fieldSelector": f"metadata.name={OPERATOR_LEASE}"})
    page = msgspec.json.decode(body, type=list_page_type(_Lease))
    return [each for each in page.items or () if each.spec.holder_identity]


def _is_fresh(lease: _Lease, now: datetime) -> bool:
    if lease.spec.renew_time is None:
        return False
    try:
        renewed_at = datetime.fromisoformat(lease.spec.renew_time)
    except ValueError:
        return True
    age = abs((now - renewed_at).total_seconds())
    return age < (lease.spec.lease_duration_seconds or 15) + _SLACK_SECONDS
