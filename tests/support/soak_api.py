"""A stand-in API server in a test's hands, for more pods that come and go than the real one carries here.

It is the one that benchmarks use, with pods that are made and deleted by calls instead of by a list of orders. It runs
in a thread of its own, and checks nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from benchmarks.deletion_api import StandInApi
from benchmarks.deletion_http import Answer, Request, listen
from benchmarks.deletion_pods import encode, event, list_page, pod

Json = dict[str, Any]


class SoakApi(StandInApi):
    """Use it as a context manager; `url` is where it listens."""

    def __init__(self) -> None:
        super().__init__(pods=0, nodes=1, kept=0, flagged=0)
        self.url = ""
        self._bound: dict[str, Json] = {}
        self._made = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stand-in API server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        server, port = asyncio.run_coroutine_threadsafe(listen(self.answer), self._loop).result(10)
        self._server = server
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def create_pod(self, number: int, node: str) -> None:
        """Make the next pod of this number's name, which has no set."""
        self._made += 1
        obj = pod(number, 0, node)
        del obj["metadata"]["ownerReferences"]
        obj["metadata"]["uid"] = f"20000000-0000-4000-8000-{self._made:012d}"
        self._do(lambda: self._put("ADDED", obj))

    def delete_pod(self, name: str, *, flag: str) -> None:
        """Delete a pod with grace period 0; `flag` is the annotation to be written in the same breath, if any."""

        def delete() -> None:
            obj = self._bound[name]
            if flag:
                obj["metadata"]["annotations"][flag] = "true"
                self._put("MODIFIED", obj)
            obj["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
            self._put("MODIFIED", obj)
            self._put("DELETED", obj)
            del self._bound[name]

        self._do(delete)

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match request.parts:
            case ("api", "v1", "pods") if not request.query.get("watch"):
                return 200, list_page([encode(obj) for obj in self._bound.values()])
            case ("api", "v1", "namespaces", _, "pods", name):
                obj = self._bound.get(name)
                if obj is None:
                    return 404, encode({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name}})
                return 200, encode(obj)
        return super().answer(request)

    def _put(self, kind: str, obj: Json) -> None:
        obj["metadata"]["resourceVersion"] = str(self.next_version())
        self._bound[obj["metadata"]["name"]] = obj
        self.tell_pods(event(kind, obj))

    def _do(self, call: Callable[[], object]) -> None:
        """Run a call in the server's thread, to its end."""
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10), "the stand-in API server hangs"
