"""Agents of a Service: one address per agent, from slices made by hand and followed on the real API server."""

import asyncio
from typing import Any

import msgspec
import pytest

from controller.agents.endpoints import AgentEndpoint
from controller.agents.endpointslices import EndpointSlice, EndpointSlices, agent_endpoints
from controller.kube.access import load_access
from controller.kube.client import KubeClient
from devenv.control_plane import ControlPlane
from devenv.kube_api import KubeApi
from tests.support.waiting import wait_for_async


def _slice(kind: str, *endpoints: dict[str, Any], port: int = 7443, port_name: str = "grpc") -> dict[str, Any]:
    return {
        "metadata": {"name": "s", "namespace": "ns"},
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": "metrics", "port": 9}, {"name": port_name, "port": port}] if port else None,
    }


def _end(node: str | None, address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "nodeName": node, "conditions": conditions}


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        pytest.param([_slice("IPv4", _end("a", "10.0.0.1"))], [("a", "10.0.0.1:7443")], id="one"),
        pytest.param([_slice("IPv4", _end("a", "10.0.0.1", ready=False))], [("a", "10.0.0.1:7443")], id="not ready"),
        pytest.param(
            [_slice("IPv6", _end("a", "fd00::1")), _slice("IPv4", _end("a", "10.0.0.1"))],
            [("a", "10.0.0.1:7443")],
            id="dual stack is one agent",
        ),
        pytest.param([_slice("IPv6", _end("a", "fd00::1"))], [("a", "[fd00::1]:7443")], id="IPv6 only"),
        pytest.param(
            [_slice("IPv4", _end("a", "10.0.0.1", terminating=True, serving=True), _end("a", "10.0.0.2"))],
            [("a", "10.0.0.2:7443")],
            id="rolling update takes the new one",
        ),
        pytest.param(
            [_slice("IPv4", _end("a", "10.0.0.1", terminating=True, serving=True))],
            [("a", "10.0.0.1:7443")],
            id="leaving but alone",
        ),
        pytest.param([_slice("IPv4", _end("a", "10.0.0.1", terminating=True, serving=False))], [], id="gone"),
        pytest.param(
            [_slice("IPv4", _end("a", "10.0.0.1"), _end("a", "10.0.0.2"))],
            [("a", "10.0.0.1:7443"), ("a", "10.0.0.2:7443")],
            id="two agents of one name stay two",
        ),
        pytest.param([_slice("IPv4", _end(None, "10.0.0.1"), _end("A_b", "10.0.0.2"))], [], id="no node name"),
        pytest.param([_slice("FQDN", _end("a", "host.example"))], [], id="names are not dialled"),
        pytest.param([_slice("IPv4", _end("a", "10.0.0.1"), port=0)], [], id="no ports"),
        pytest.param([_slice("IPv4", _end("a", "10.0.0.1"), port_name="other")], [], id="no such port"),
        pytest.param([{"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": None}], [], id="null endpoints"),
    ],
)
def test_endpoints(slices: list[dict[str, Any]], expected: list[tuple[str, str]]) -> None:
    read = [msgspec.convert(part, EndpointSlice) for part in slices]
    found = agent_endpoints(read, "grpc", "here")
    assert [(e.node_name, e.address) for e in found] == expected
    assert {e.source for e in found} <= {"here"}


def test_first_port_without_a_name() -> None:
    read = msgspec.convert(_slice("IPv4", _end("a", "10.0.0.1")), EndpointSlice)
    assert agent_endpoints([read], "", "")[0].address == "10.0.0.1:9"


async def test_followed_on_the_real_api_server(control_plane: ControlPlane, kube: KubeApi) -> None:
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    body = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "agents-1", "labels": {"kubernetes.io/service-name": "agents"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "node-a"}],
        "ports": [{"name": "grpc", "port": 7443}],
    }
    published: list[tuple[AgentEndpoint, ...]] = []
    await asyncio.to_thread(kube.create, path, body)
    access = await load_access(kubeconfig=str(control_plane.kubeconfig("controller")))
    async with KubeClient(access) as client:
        source = EndpointSlices(client, "default", "agents", "grpc")
        task = asyncio.create_task(source.run(published.append))
        try:
            await wait_for_async(lambda: published, what="the first set")
            assert source.answered
            assert source.problem == ""
            assert [e.address for e in published[-1]] == ["10.0.0.1:7443"]
            more = {"endpoints": [*body["endpoints"], {"addresses": ["10.0.0.2"], "nodeName": "node-b"}]}
            await asyncio.to_thread(kube.merge, f"{path}/agents-1", more)
            await wait_for_async(lambda: len(published[-1]) == 2, what="the second endpoint")
            await asyncio.to_thread(kube.delete, f"{path}/agents-1")
            await wait_for_async(lambda: published[-1] == (), what="the end of the slice")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
