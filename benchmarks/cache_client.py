"""Calls the snapshot cache as the controller does: `grpc.aio`, one call after the other, each with its latency.

`python -m benchmarks.cache_client ADDRESS METHOD` reads requests from standard input, one in base64 a line, and prints
`{"us": [LATENCY, …], "last_reply": BASE64}`.
"""

import asyncio
import base64
import json
import sys
import time

import grpc

_WARM_UP = "/grpc.health.v1.Health/Check"
# The first calls of a process cost it several times what the next ones do; that is the client's, not the server's.
_WARM_UP_CALLS = 20


async def _call(address: str, method: str, requests: list[bytes]) -> dict[str, object]:
    took: list[float] = []
    reply = b""
    async with grpc.aio.insecure_channel(address) as channel:
        warm_up: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_WARM_UP)
        for _ in range(_WARM_UP_CALLS):
            try:
                await warm_up(b"", wait_for_ready=True)
            except grpc.aio.AioRpcError as error:
                # The bare peer has no health service; connected it is all the same.
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        for request in requests:
            started = time.perf_counter()
            reply = await call(request)
            took.append((time.perf_counter() - started) * 1e6)
    return {"us": took, "last_reply": base64.b64encode(reply).decode()}


def main() -> None:
    """Send everything on standard input."""
    requests = [base64.b64decode(line) for line in sys.stdin]
    print(json.dumps(asyncio.run(_call(sys.argv[1], sys.argv[2], requests))))


if __name__ == "__main__":
    main()
