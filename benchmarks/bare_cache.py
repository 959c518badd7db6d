"""The peer of purge and retain: a bare RPC and the one durable step that cannot be left out, and nothing else.

`python -m benchmarks.bare_cache ADDRESS DIRECTORY`: PurgeSnapshots renames `DIRECTORY/snapshots/NAME` into
`DIRECTORY/trash` and syncs both directories; RetainSnapshots commits one row with `synchronous=FULL`. Both answer with
an empty message.
"""

import asyncio
import os
import sqlite3
import sys

import grpc

from benchmarks.bare_server import serve
from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

SERVICE = "cocoonstack.node.v1.SnapshotCache"


class BareCache:
    """The two durable steps, done where the call arrives."""

    def __init__(self, directory: str) -> None:
        self._snapshots, self._trash = (
            os.open(os.path.join(directory, name), os.O_RDONLY | os.O_DIRECTORY) for name in ("snapshots", "trash")
        )
        self._database = sqlite3.connect(os.path.join(directory, "ledger.db"), isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE retention (name TEXT PRIMARY KEY, owner BLOB) WITHOUT ROWID")

    async def purge(self, request: bytes, context: object) -> bytes:
        """Rename and sync."""
        del context
        name = pb.PurgeSnapshotsRequest.FromString(request).owner.vm_name
        os.rename(name, name, src_dir_fd=self._snapshots, dst_dir_fd=self._trash)
        os.fsync(self._trash)
        os.fsync(self._snapshots)
        return b""

    async def retain(self, request: bytes, context: object) -> bytes:
        """Commit one row."""
        del context
        owner = pb.RetainSnapshotsRequest.FromString(request).owner
        self._database.execute("INSERT INTO retention VALUES (?, ?)", (owner.vm_name, owner.SerializeToString()))
        return b""


async def _serve(address: str, directory: str) -> None:
    cache = BareCache(directory)
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "PurgeSnapshots": grpc.unary_unary_rpc_method_handler(cache.purge),
        "RetainSnapshots": grpc.unary_unary_rpc_method_handler(cache.retain),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    await serve(server, address)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2]))
