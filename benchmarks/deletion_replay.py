"""A loopback server that replays pods: `python -m benchmarks.deletion_replay PODS EVENTS`, its port on standard output.

Why this exists: the real API server takes minutes to make a hundred thousand pods, and would be what is measured. Pods
are about 4 KB, as the API sends them. Lists come in pages; each watch sends its events at once and ends, because the
official client waits for whole buffers.
"""

import contextlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_NODES = 1000
_EVENTS_VERSION = 1_000_000


def pod(number: int, version: int) -> dict[str, Any]:
    """Return a pod of a CocoonSet with what schedulers, controllers and kubectl leave in it."""
    managed = {
        "manager": "cocoonset-operator",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {f"f:field-{n}": {"f:value": {}, "f:type": {}, "f:lastTransitionTime": {}} for n in range(20)},
    }
    condition = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {
        "metadata": {
            "name": f"set-{number}-0",
            "namespace": f"team-{number % 50}",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"cocoonset.cocoonstack.io/name": f"set-{number}", "cocoonset.cocoonstack.io/role": "main"},
            "annotations": {
                "cocoonset.cocoonstack.io/managed": "true",
                "cocoonset.cocoonstack.io/image": "registry.example/images/debian:12",
                "vm.cocoonstack.io/id": f"vm-{number:08d}",
                "vm.cocoonstack.io/lifecycle-state": "ready",
            },
            "ownerReferences": [
                {
                    "apiVersion": "cocoonset.cocoonstack.io/v1",
                    "kind": "CocoonSet",
                    "name": f"set-{number}",
                    "uid": f"10000000-0000-4000-8000-{number:012d}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [managed],
        },
        "spec": {
            "nodeName": f"host-{number % _NODES}",
            "containers": [
                {
                    "name": "vm",
                    "image": "registry.example/images/debian:12",
                    "resources": {"requests": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "20Gi"}},
                    "env": [{"name": f"VARIABLE_{n}", "value": "x" * 40} for n in range(8)],
                }
            ],
            "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": kind} | condition for kind in ("Initialized", "Ready", "PodScheduled")],
            "containerStatuses": [
                {
                    "name": "vm",
                    "image": "registry.example/images/debian:12",
                    "imageID": "sha256:0",
                    "restartCount": 0,
                    "ready": True,
                    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                }
            ],
        },
    }


def event_lines(events: int) -> list[bytes]:
    """Return the lines of a watch."""
    changes = (pod(number, _EVENTS_VERSION + number) for number in range(events))
    return [json.dumps({"type": "MODIFIED", "object": each | {"kind": "Pod"}}).encode() + b"\n" for each in changes]


class Replay(BaseHTTPRequestHandler):
    """Answers lists and watches of pods; everything else is not there."""

    protocol_version = "HTTP/1.1"
    items: tuple[bytes, ...] = ()
    lines: bytes = b""

    def do_GET(self) -> None:
        """Answer."""
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path != "/api/v1/pods":
            self._answer(404, b'{"kind":"Status","code":404,"reason":"NotFound"}')
        elif query.get("watch") in ("1", "true", "True"):
            self._watch()
        else:
            self._list(query)

    def _list(self, query: dict[str, str]) -> None:
        start, size = int(query.get("continue", 0)), int(query.get("limit", len(self.items)))
        rest = start + size if start + size < len(self.items) else ""
        head = (
            f'{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"5","continue":"{rest}"}},"items":['
        )
        self._answer(200, head.encode() + b",".join(self.items[start : start + size]) + b"]}")

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the reader has seen enough
            self.wfile.write(self.lines)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Say nothing."""


def main() -> None:
    """Serve until killed."""
    pods, events = int(sys.argv[1]), int(sys.argv[2])
    Replay.items = tuple(json.dumps(pod(number, number + 1)).encode() for number in range(pods))
    Replay.lines = b"".join(event_lines(events))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Replay)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
