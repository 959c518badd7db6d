"""The peer of the agent: the least server that answers `GetNodeResources` with `grpc.aio`, with nothing around it.

It builds an equal message at every call, as a plain service does. `python -m benchmarks.bare_server ADDRESS REPORT`
serves the report in the file REPORT (encoded); without REPORT a small made-up one.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from cocoonstack.node.v1 import node_resources_pb2 as pb
from cocoonstack.node.v1 import node_resources_pb2_grpc as pb_grpc


def builder(report: pb.NodeResourcesReport) -> Callable[[], pb.NodeResourcesReport]:
    """Return a function that builds an equal report from plain Python values, anew at each call."""
    capacity, allocatable, labels = dict(report.capacity), dict(report.allocatable), dict(report.labels)
    managed = list(report.managed_label_keys)
    resources = [
        (
            r.name,
            r.source,
            r.origin,
            r.raw_value,
            [(a.reason, a.value) for a in r.adjustments],
            r.capacity_value,
            r.allocatable_value,
            r.observe_time.ToNanoseconds(),
        )
        for r in report.resources
    ]
    host = {field.name: value for field, value in report.host.ListFields()}
    addresses = [(a.type, a.address) for a in report.addresses]
    conditions = [
        (c.type, c.status, c.reason, c.message, c.last_transition_time.ToNanoseconds()) for c in report.conditions
    ]
    simple = (report.node_name, report.instance_id, report.revision, report.reserve_percent)
    provider_id, agent_version = report.provider_id, report.agent_version
    observed = report.observe_time.ToNanoseconds()

    def build() -> pb.NodeResourcesReport:
        node_name, instance_id, revision, reserve_percent = simple
        return pb.NodeResourcesReport(
            node_name=node_name,
            instance_id=instance_id,
            revision=revision,
            observe_time=_timestamp(observed),
            capacity=capacity,
            allocatable=allocatable,
            labels=labels,
            managed_label_keys=managed,
            reserve_percent=reserve_percent,
            resources=[
                pb.ResourceExplanation(
                    name=name,
                    source=source,
                    origin=origin,
                    raw_value=raw,
                    adjustments=[pb.Adjustment(reason=reason, value=value) for reason, value in adjustments],
                    capacity_value=capacity_value,
                    allocatable_value=allocatable_value,
                    observe_time=_timestamp(at),
                )
                for name, source, origin, raw, adjustments, capacity_value, allocatable_value, at in resources
            ],
            host=pb.HostInfo(**host),
            addresses=[pb.NodeAddress(type=kind, address=address) for kind, address in addresses],
            provider_id=provider_id,
            conditions=[
                pb.Condition(
                    type=kind, status=status, reason=reason, message=message, last_transition_time=_timestamp(at)
                )
                for kind, status, reason, message, at in conditions
            ],
            agent_version=agent_version,
        )

    return build


def _timestamp(nanoseconds: int) -> Timestamp:
    return Timestamp(seconds=nanoseconds // 1_000_000_000, nanos=nanoseconds % 1_000_000_000)


class BareNodeResources(pb_grpc.NodeResourcesServicer):
    """Answers Get with a message built for this call."""

    def __init__(self, report: pb.NodeResourcesReport) -> None:
        self._build = builder(report)

    async def GetNodeResources(  # noqa: N802 (the name of the RPC)
        self, request: pb.GetNodeResourcesRequest, context: object
    ) -> pb.GetNodeResourcesResponse:
        """Return the report."""
        del request, context
        return pb.GetNodeResourcesResponse(report=self._build())

    def WatchNodeResources(  # noqa: N802 (the name of the RPC)
        self, request: pb.WatchNodeResourcesRequest, context: object
    ) -> AsyncIterator[pb.WatchNodeResourcesResponse]:
        """Not part of any comparison."""
        raise NotImplementedError


async def serve(server: grpc.aio.Server, address: str) -> None:
    """Serve until SIGTERM."""
    server.add_insecure_port(address)
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(0)


async def _serve(address: str, report: pb.NodeResourcesReport) -> None:
    server = grpc.aio.server()
    pb_grpc.add_NodeResourcesServicer_to_server(BareNodeResources(report), server)
    await serve(server, address)


def main() -> None:
    """Serve until SIGTERM."""
    report = pb.NodeResourcesReport(node_name="bare", capacity={"cpu": "2"}, allocatable={"cpu": "1"})
    if len(sys.argv) > 2:
        report = pb.NodeResourcesReport.FromString(Path(sys.argv[2]).read_bytes())
    asyncio.run(_serve(sys.argv[1], report))


if __name__ == "__main__":
    main()
