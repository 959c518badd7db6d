"""Whether the API serves a collection at all, told apart from every other reason why it cannot be listed.

Why this exists: a kind that is not installed has no objects, and that is an answer. Forbidden, broken and silent are
none: then what the list says is not known, which is not the same as nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from common.logging import fields
from controller.kube.client import KubeClient
from controller.kube.errors import KubeError, NotFound
from controller.kube.reflector import Reflector

log = logging.getLogger(__name__)

_FIRST_PROBE_SECONDS = 0.1
_PROBE_SECONDS = 5.0


class ServedProbe:
    """Asks while a reflector cannot list. `run` until cancelled.

    `unserved_since` is when the API said that it does not serve the collection, None while it has not or says
    otherwise by now; `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        reflector: Reflector[Any],
        kind: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_unserved: Callable[[], None] = lambda: None,
    ) -> None:
        """`kind` names the objects for people; `on_unserved` hears each time it turns out that they are not served."""
        self.unserved_since: float | None = None
        self._client = client
        self._reflector = reflector
        self._kind = kind
        self._clock = clock
        self._on_unserved = on_unserved

    async def run(self) -> None:
        """Look now and then."""
        # Short at first: a cluster without these objects must not keep the start waiting for the first look.
        pause = _FIRST_PROBE_SECONDS
        while True:
            if self._reflector.problem:
                await self._ask()
            elif self.unserved_since is not None:
                self.unserved_since = None
                log.info("%s are served now", self._kind)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PROBE_SECONDS)

    async def _ask(self) -> None:
        try:
            await self._client.get_bytes(self._reflector.path, {"limit": "1"})
        except NotFound:
            if self.unserved_since is None:
                self.unserved_since = self._clock()
                log.info("the API does not serve %s", self._kind, extra=fields(path=self._reflector.path))
                self._on_unserved()
        except KubeError:
            self.unserved_since = None
        else:
            self.unserved_since = None
