"""The controller's settings: what is taken, what is refused, and which settings contradict each other."""

import pytest

from common.settings import SettingsError
from controller.config import SETTINGS, load_settings

PREFIX = "COCOON_NODE_CONTROLLER_"
LEAST = {PREFIX + "KUBECONFIG": "/k", PREFIX + "AGENTS": "a=127.0.0.1:7443"}
TLS = {PREFIX + "TLS_CA_FILE": "/ca", PREFIX + "TLS_CERT_FILE": "/c", PREFIX + "TLS_KEY_FILE": "/k"}


def _problems(environ: dict[str, str], **needs: bool) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings({}, environ, None, **needs)
    return list(caught.value.problems)


def test_defaults() -> None:
    settings = load_settings({}, LEAST)
    assert settings.lifecycle == "auto"
    assert settings.registration_taint
    assert not settings.adopt_nodes
    assert settings.http_listen == ("127.0.0.1", 7445)
    assert settings.agents is not None
    assert settings.agents[0].address == "127.0.0.1:7443"
    assert settings.tls_ca_file is None


@pytest.mark.parametrize(
    ("name", "text", "attribute", "value"),
    [
        ("HTTP_LISTEN", "off", "http_listen", None),
        ("HTTP_LISTEN", "0.0.0.0:0", "http_listen", ("0.0.0.0", 0)),
        ("HTTP_LISTEN", "[::1]:80", "http_listen", ("::1", 80)),
        ("AGENTS_SERVICE", "cocoon-system/agents", "agents_service", ("cocoon-system", "agents")),
        ("AGENTS_DNS", "_grpc._tcp.agents.example", "agents_dns", "_grpc._tcp.agents.example"),
        ("AGENTS_DNS", "agents.example:9", "agents_dns", "agents.example:9"),
        ("ADOPT_NODES", "true", "adopt_nodes", True),
        ("DNS_REFRESH_SECONDS", "5", "dns_refresh_seconds", 5),
        ("LEASE_DURATION_SECONDS", "15", "lease_duration_seconds", 15.0),
        ("RETRY_PERIOD_SECONDS", "0.05", "retry_period_seconds", 0.05),
    ],
)
def test_taken(name: str, text: str, attribute: str, value: object) -> None:
    assert getattr(load_settings({}, LEAST | {PREFIX + name: text}), attribute) == value


def test_lifecycle_has_the_name_of_the_contract() -> None:
    assert load_settings({}, LEAST | {"COCOON_NODE_LIFECYCLE": "external"}).lifecycle == "external"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("HTTP_LISTEN", "7445"),
        ("HTTP_LISTEN", ":7445"),
        ("HTTP_LISTEN", "127.0.0.1:70000"),
        ("AGENTS_SERVICE", "agents"),
        ("AGENTS_SERVICE", "A/b"),
        ("AGENTS_SERVICE", "a/../b"),
        ("AGENTS_DNS", "_grpc.agents.example"),
        ("AGENTS_DNS", "agents.example:x"),
        ("AGENTS", "a"),
        ("IN_CLUSTER", "yes"),
        ("DNS_REFRESH_SECONDS", "0"),
        ("LEASE_DURATION_SECONDS", "601"),
        ("LEASE_DURATION_SECONDS", "1e1"),
        ("RENEW_DEADLINE_SECONDS", "nan"),
        ("RETRY_PERIOD_SECONDS", "0.01"),
        ("RETRY_PERIOD_SECONDS", "-1"),
        ("RETRY_PERIOD_SECONDS", "2s"),
        ("DNS_REFRESH_SECONDS", "1.5"),
        ("TLS_CA_FILE", "relative"),
        ("LOG_LEVEL", "loud"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_refused_with_variable_value_source_and_rule(name: str, text: str) -> None:
    problems = _problems(LEAST | {PREFIX + name: text})
    assert len(problems) == 1
    assert problems[0].startswith(f'{PREFIX}{name}="{text}" (environment): must be')


def test_all_problems_at_once() -> None:
    problems = _problems({PREFIX + "LOG_LEVEL": "loud", "COCOON_NODE_LIFECYCLE": "mine", PREFIX + "TLS_CA_FILE": "/ca"})
    text = "\n".join(problems)
    assert len(problems) == 5
    for part in (
        "LOG_LEVEL",
        "COCOON_NODE_LIFECYCLE",
        "missing:",
        "--kubeconfig FILE or --in-cluster",
        "--agents-file",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({PREFIX + "IN_CLUSTER": "true"}, "name two clusters"),
        ({PREFIX + "AGENTS": "a=10.0.0.1:1"}, "plain text is only allowed to loopback"),
        (TLS | {PREFIX + "AGENTS_DNS": "agents.example:1"}, "with TLS only SRV"),
        ({PREFIX + "LEASE_DURATION_SECONDS": "7"}, "must grow in this order"),
    ],
)
def test_contradictions(extra: dict[str, str], words: str) -> None:
    problems = _problems(LEAST | extra)
    assert len(problems) == 1
    assert words in problems[0]


def test_tls_lets_agents_be_anywhere() -> None:
    settings = load_settings({}, LEAST | TLS | {PREFIX + "AGENTS": "a=10.0.0.1:1"})
    assert settings.tls_key_file == "/k"


def test_commands_say_what_they_need() -> None:
    settings = load_settings({}, {}, needs_cluster=False, needs_agents=False)
    assert settings.kubeconfig is None
    assert len(_problems({}, needs_cluster=True, needs_agents=False)) == 1


def test_variables_of_a_service_are_no_settings() -> None:
    """Kubernetes puts such variables into every pod beside a Service named after this program."""
    injected = {
        PREFIX + "SERVICE_HOST": "10.0.0.1",
        PREFIX + "PORT": "tcp://10.0.0.1:7445",
        PREFIX + "PORT_7445_TCP": "x",
    }
    assert load_settings({}, LEAST | injected).http_listen == ("127.0.0.1", 7445)
    assert not {setting.variable for setting in SETTINGS} & injected.keys()
