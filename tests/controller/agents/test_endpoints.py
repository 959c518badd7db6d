"""Addresses of agents: what is taken, what is refused, what may be dialled in plain text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.agents.endpoints import (
    AgentEndpoint,
    EndpointError,
    parse_endpoint,
    parse_endpoints,
    plain_text_problem,
    split_address,
)


@pytest.mark.parametrize(
    ("text", "name", "address", "target"),
    [
        ("a=10.0.0.1:7443", "a", "10.0.0.1:7443", "ipv4:10.0.0.1:7443"),
        (" a = 10.0.0.1 ", "a", "10.0.0.1:7443", "ipv4:10.0.0.1:7443"),
        ("a.b-c=host.example:1", "a.b-c", "host.example:1", "dns:///host.example:1"),
        ("a=[::1]:5", "a", "[::1]:5", "ipv6:[::1]:5"),
        ("a=[2001:db8::1]", "a", "[2001:db8::1]:7443", "ipv6:[2001:db8::1]:7443"),
        ("a=unix:/run/agent.sock", "a", "unix:/run/agent.sock", "unix:/run/agent.sock"),
    ],
)
def test_taken(text: str, name: str, address: str, target: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.node_name, endpoint.address, endpoint.grpc_target()) == (name, address, target)


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "=1.2.3.4:1",
        "a=",
        "A=1.2.3.4:1",
        "a_b=1.2.3.4:1",
        "-a=1.2.3.4:1",
        f"{'a' * 64}=1.2.3.4:1",
        "a=1.2.3.4:0",
        "a=1.2.3.4:65536",
        "a=1.2.3.4:x",
        "a=1.2.3.4:\u0661",
        "a=::1:7443:7",
        "a=[::1:5",
        "a=[::1]5",
        "a=host name:1",
        "a=unix:relative",
        "a=unix:/x\0y",
        "../x=1.2.3.4:1",
    ],
)
def test_refused_with_the_text(text: str) -> None:
    """F26: names that are no node names never become one."""
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text)
    assert str(caught.value)


def test_list_tells_every_problem_at_once() -> None:
    """F34: one name twice is a problem too, not a choice of ours."""
    with pytest.raises(EndpointError) as caught:
        parse_endpoints("a=1.2.3.4:1, b ,c=1.2.3.4:99999\n# d=x\na=5.6.7.8:1 # again")
    text = str(caught.value)
    assert all(part in text for part in ("'b'", "99999", "'a': named more than once"))
    assert "d=x" not in text


def test_file_form() -> None:
    found = parse_endpoints("# all of them\nb=10.0.0.2:1\n\na=10.0.0.1:1, c=10.0.0.3:1 # three\n", "file")
    assert [e.node_name for e in found] == ["a", "b", "c"]
    assert {e.source for e in found} == {"file"}


@given(st.text(max_size=120))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except EndpointError:
        return
    assert parse_endpoint(f"{endpoint.node_name}={endpoint.address}") == endpoint
    if not endpoint.address.startswith("unix:"):
        assert 1 <= split_address(endpoint.address)[1] <= 65535


@pytest.mark.parametrize(
    ("name", "address", "tls", "refused"),
    [
        ("a", "127.0.0.1:1", False, False),
        ("a", "127.8.9.1:1", False, False),
        ("a", "[::1]:1", False, False),
        ("a", "localhost:1", False, False),
        ("a", "unix:/x", False, False),
        ("", "127.0.0.1:1", False, False),
        ("a", "10.0.0.1:1", False, True),
        ("a", "0.0.0.0:1", False, True),
        ("a", "localhost.example:1", False, True),
        ("a", "127.0.0.1.example:1", False, True),
        ("a", "10.0.0.1:1", True, False),
        ("", "10.0.0.1:1", True, True),
    ],
)
def test_plain_text_only_where_nobody_listens(name: str, address: str, tls: bool, refused: bool) -> None:
    assert bool(plain_text_problem(AgentEndpoint(name, address), tls)) is refused
