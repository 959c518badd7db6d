"""A stand-in API server with a hundred thousand pods: `python -m benchmarks.deletion_api PODS NODES KEPT FLAGGED`.

Why this exists: the real one takes minutes to make so many, and 1,100 writes and events a second on this machine would
measure it and not the controller. It keeps Nodes and Leases, takes server-side applies with their managed fields, lists
and watches, and checks nothing. The pods below KEPT belong to sets that are suspended on their nodes, and carry the
keep flag when FLAGGED is 1; of other sets it knows nothing, so they are gone.

It prints `{"port"}`, and answers each line of standard input with one of JSON; `benchmarks.deletion_load` says which.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmarks.child_commands import obey_until_ended
from benchmarks.deletion_http import Answer, Request, Stream, listen
from benchmarks.deletion_load import Load, longest_gap
from benchmarks.deletion_pods import LIST_VERSION, SETS_API, encode, list_page, names, node_name, pod, set_uid

Json = dict[str, Any]

_NODE_LEASES = "kube-node-lease"


class Objects:
    """One kind of object, by name, with whoever watches it."""

    def __init__(self, kind: str, api_version: str, versions: Iterator[int]) -> None:
        self._head: Json = {"kind": kind, "apiVersion": api_version}
        self._versions = versions
        self.items: dict[str, Json] = {}
        self.watchers: list[Stream] = []

    def put(self, name: str, obj: Json) -> bytes:
        """Keep a new state, tell who watches, return it encoded."""
        before = self.items.get(name)
        obj = self._head | obj
        metadata = obj.setdefault("metadata", {})
        metadata["name"] = name
        metadata["uid"] = before["metadata"]["uid"] if before else f"{self._head['kind']}-{name}"
        metadata["resourceVersion"] = str(next(self._versions))
        self.items[name] = obj
        body = encode(obj)
        if self.watchers:
            kind = b"MODIFIED" if before else b"ADDED"
            self.tell(b'{"type":"%b","object":%b}\n' % (kind, body))
        return body

    def tell(self, line: bytes) -> None:
        """Send a line to who watches."""
        self.watchers = [stream for stream in self.watchers if stream.is_open]
        for stream in self.watchers:
            stream.send(line)

    def watch(self, stream: Stream) -> None:
        """Begin a watch; what was before it has been listed."""
        stream.begin()
        self.watchers.append(stream)

    def page(self) -> bytes:
        """Return all in one page."""
        return list_page([encode(obj) for obj in self.items.values()])


class StandInApi:
    """Answers requests, and counts what is written; it is the `Cluster` of a `Load`."""

    def __init__(self, pods: int, nodes: int, kept: int, flagged: int) -> None:
        self._versions = itertools.count(LIST_VERSION + 1)
        self.node_count, self.kept = nodes, kept
        self.pods = [
            encode(pod(number, number + 1, node_name(number, nodes), keep=bool(flagged) and number < kept))
            for number in range(pods)
        ]
        self.gone: set[int] = set()
        self._pod_watch = Objects("Pod", "v1", self._versions)
        self._nodes = Objects("Node", "v1", self._versions)
        self._leases: dict[str, Objects] = {}
        self._sets = Objects("CocoonSet", SETS_API, self._versions)
        for number in range(kept):
            namespace, _ = names(number)
            self._sets.items[f"{namespace}/set-{number}"] = _suspended_set(number, node_name(number, nodes))
        self._writes: Counter[str] = Counter()
        self._renewed: dict[str, list[float]] = {}
        self._counted_at = time.monotonic()

    def next_version(self) -> int:
        """Return a resource version that is newer than all."""
        return next(self._versions)

    def tell_pods(self, line: bytes) -> None:
        """Send a line to who watches pods."""
        self._pod_watch.tell(line)

    def count(self) -> dict[str, object]:
        """Return what was written since the last time, in how many seconds, and the longest gap between renewals."""
        began_at, self._counted_at = self._counted_at, time.monotonic()
        gap = longest_gap(self._renewed, began_at, self._counted_at)
        writes = dict(self._writes)
        self._writes.clear()
        return {
            "seconds": self._counted_at - began_at,
            "writes": writes,
            "leases": len(self._renewed),
            "longest_gap_seconds": gap,
        }

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match request.parts:
            case ("api", "v1", "pods"):
                return self._list_pods(request)
            case ("api", "v1", "nodes", *rest):
                return self._objects(self._nodes, request, rest)
            case ("apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases", *rest):
                kept = self._leases.setdefault(namespace, Objects("Lease", "coordination.k8s.io/v1", self._versions))
                if request.method != "GET" and namespace == _NODE_LEASES:
                    name = rest[0] if rest else json.loads(request.body)["metadata"]["name"]
                    self._renewed.setdefault(name, []).append(time.monotonic())
                return self._objects(kept, request, rest)
            case ("apis", "cocoonset.cocoonstack.io", "v1", "cocoonsets"):
                return self._objects(self._sets, request, [])
            case ("apis", "cocoonset.cocoonstack.io", "v1", "namespaces", namespace, "cocoonsets", name):
                return _found(self._sets.items.get(f"{namespace}/{name}"), name)
            case ("api", "v1", "namespaces", "kube-system"):
                return 200, b'{"metadata":{"name":"kube-system","uid":"stand-in"}}'
            case ("api", "v1", "namespaces", _, "pods", name):
                number = int(name.split("-")[1])
                return _not_found(name) if number in self.gone else (200, self.pods[number])
            case ("apis", "events.k8s.io", *_):
                self._writes[f"{request.method} events"] += 1
                return 201, request.body
        return 404, b'{"kind":"Status","code":404,"reason":"NotFound"}'

    def _list_pods(self, request: Request) -> Answer:
        if request.query.get("watch"):
            self._pod_watch.watch(request.stream)
            return None
        start = int(request.query.get("continue", 0))
        end = start + int(request.query.get("limit", len(self.pods)))
        items = [self.pods[number] for number in range(start, min(end, len(self.pods))) if number not in self.gone]
        return 200, list_page(items, str(end) if end < len(self.pods) else "")

    def _objects(self, objects: Objects, request: Request, rest: list[str]) -> Answer:
        if request.method == "GET":
            if rest:
                return _found(objects.items.get(rest[0]), rest[0])
            if not request.query.get("watch"):
                return 200, objects.page()
            objects.watch(request.stream)
            return None
        self._writes[f"{request.method} {request.parts[-2 if rest else -1]}"] += 1
        body: Json = json.loads(request.body)
        name = rest[0] if rest else body["metadata"]["name"]
        before = objects.items.get(name, {})
        if request.method == "POST":
            return 201, objects.put(name, _owned(body, request, "Update"))
        if request.method == "PATCH":
            if "apply" in request.content_type:
                body = _owned(body, request, "Apply", before)
            body = _merged(before, body)
        return 200, objects.put(name, body)


def _suspended_set(number: int, node: str) -> Json:
    namespace, _ = names(number)
    metadata = {
        "name": f"set-{number}",
        "namespace": namespace,
        "uid": set_uid(number),
        "resourceVersion": str(number + 1),
        "annotations": {"cocoonset.cocoonstack.io/hibernated-on-node": node},
    }
    return {"kind": "CocoonSet", "apiVersion": SETS_API, "metadata": metadata, "spec": {"suspend": True}}


def _found(obj: Json | None, name: str) -> Answer:
    return (200, encode(obj)) if obj is not None else _not_found(name)


def _not_found(name: str) -> Answer:
    status = {"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name}}
    return 404, encode(status)


def _owned(body: Json, request: Request, operation: str, before: Json | None = None) -> Json:
    """Return the body with its sender as owner of everything in it."""
    manager, subresource = request.query.get("fieldManager", "unknown"), request.parts[-1]
    entry = {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": _fields(body)}
    if subresource == "status":
        entry["subresource"] = subresource
    key = (manager, operation, entry.get("subresource"))
    entries = ((before or {}).get("metadata") or {}).get("managedFields", [])
    others = [each for each in entries if (each["manager"], each["operation"], each.get("subresource")) != key]
    return body | {"metadata": body.get("metadata", {}) | {"managedFields": [*others, entry]}}


def _fields(value: Any) -> Json:  # noqa: ANN401 - any JSON
    if isinstance(value, dict):
        return {f"f:{key}": _fields(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(each, dict) and "type" in each for each in value):
        return {"k:" + json.dumps({"type": each["type"]}): _fields(each) for each in value}
    return {}


def _merged(before: Any, change: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(before, dict) and isinstance(change, dict):
        merged = before | {key: _merged(before.get(key), value) for key, value in change.items()}
        return {key: value for key, value in merged.items() if value is not None}
    is_keyed = isinstance(before, list) and isinstance(change, list) and change and "type" in change[0]
    if is_keyed and all("type" in each for each in before):
        return list(({each["type"]: each for each in before} | {each["type"]: each for each in change}).values())
    return change


async def _serve(pods: int, nodes: int, kept: int, flagged: int) -> None:
    api = StandInApi(pods, nodes, kept, flagged)
    server, port = await listen(api.answer)
    gc.collect()
    gc.freeze()
    print(json.dumps({"port": port}), flush=True)
    await obey_until_ended(Load(api).obey)
    server.close()


def main() -> None:
    """Serve until standard input ends or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(*(int(argument) for argument in sys.argv[1:5])))


if __name__ == "__main__":
    main()
