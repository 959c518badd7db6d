"""A cocoon-operator that is started later: seats are left to it while it runs, and it is said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller.kube.errors import Forbidden
from controller.kube.leadership import Leadership
from controller.seats.assembly import SeatParts, SeatSettings
from controller.seats.operator_guard import OPERATOR_LEASE
from tests.controller.seats.test_answers import Agents
from tests.support.waiting import wait_for_async


class Cluster:
    """An API that knows of one Lease, or does not tell."""

    def __init__(self) -> None:
        self.holder = ""
        self.tells = True
        self.reads = 0

    async def get_bytes(self, path: str, query: Mapping[str, str]) -> bytes:
        assert path.endswith("/leases")
        self.reads += 1
        assert OPERATOR_LEASE in query["fieldSelector"]
        if not self.tells:
            raise Forbidden("no", status_code=403)
        now = datetime.now(UTC).isoformat()
        spec = {"holderIdentity": self.holder, "leaseDurationSeconds": 15, "renewTime": now}
        items = [{"metadata": {"name": OPERATOR_LEASE, "uid": "u"}, "spec": spec}]
        return json.dumps({"metadata": {}, "items": items}).encode()


async def test_seats_are_left_to_an_operator_that_starts_later() -> None:
    cluster: Any = Cluster()
    parts = SeatParts(
        cluster,
        Leadership(),
        None,
        Agents(),
        lambda: (),
        lambda: True,
        settings=SeatSettings(guard_seconds=0.01),
    )

    def is_held() -> bool:
        return any("cocoon-operator runs" in reason for reason in parts.unready_reasons())

    guard = asyncio.create_task(parts.guard())
    try:
        assert not is_held()
        cluster.holder = "operator-1"
        await wait_for_async(is_held, what="seats being left to the operator")
        # What cannot be read changes nothing.
        cluster.tells = False
        cluster.holder = ""
        before = cluster.reads
        await wait_for_async(lambda: cluster.reads > before + 1, what="the Lease being asked for again")
        assert is_held()
        cluster.tells = True
        await wait_for_async(lambda: not is_held(), what="seats being released again")
    finally:
        guard.cancel()
        await asyncio.gather(guard, return_exceptions=True)
