"""Asks a running agent for its report, for the commands.

Why this exists: an operator on the host wants the numbers that are served, not those a second reading would give.
"""

import grpc

from cocoonstack.node.v1 import node_resources_pb2 as pb

_METHOD = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
_SECONDS = 5.0
# An agent is never behind the proxy that the environment may name for other purposes.
CHANNEL_OPTIONS = (("grpc.enable_http_proxy", 0),)


class AskError(Exception):
    """The agent did not answer with a report; `str()` names the address and what it said."""


def ask_report(address: str) -> pb.NodeResourcesReport:
    """Return the report of the agent at `HOST:PORT` or `unix:PATH`, asked in plain text."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(
            _METHOD,
            request_serializer=pb.GetNodeResourcesRequest.SerializeToString,
            response_deserializer=pb.GetNodeResourcesResponse.FromString,
        )
        try:
            return call(pb.GetNodeResourcesRequest(), timeout=_SECONDS).report
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            raise AskError(f"the agent at {address} did not answer: {code.name}: {details}") from None
